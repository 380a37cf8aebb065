package libcuda

import (
	"maps"

	"github.com/moewire/moewire/core/internal/dl"
)

// functions are the symbols, by their C names less "cu" and version. A suffix
// _v2 stands for the size_t and 64-bit pointers of today's ABI; the header maps
// plain names to these symbols.
type functions struct {
	init, driverGetVersion, getErrorName, getErrorString                     dl.Func
	deviceGetCount, deviceGet, deviceGetName, deviceGetAttribute             dl.Func
	deviceGetUUID, deviceTotalMem, deviceGetPCIBusID, deviceCanAccessPeer    dl.Func
	deviceGetP2PAttribute                                                    dl.Func
	devicePrimaryCtxRetain, devicePrimaryCtxRelease                          dl.Func
	ctxPushCurrent, ctxPopCurrent, ctxSynchronize                            dl.Func
	memAlloc, memAllocManaged, memFree, memGetInfo, memHostAlloc             dl.Func
	memFreeHost, memHostGetDevicePointer, memsetD8Async, memcpyHtoDAsync     dl.Func
	memcpyDtoHAsync, memcpyDtoDAsync, memGetAddressRange                     dl.Func
	threadExchangeStreamCaptureMode                                          dl.Func
	memCreate, memRelease, memAddressReserve, memAddressFree                 dl.Func
	memMap, memUnmap, memSetAccess, memGetAllocationGranularity              dl.Func
	memExportToShareableHandle, memImportFromShareableHandle                 dl.Func
	ipcGetMemHandle, ipcOpenMemHandle, ipcCloseMemHandle                     dl.Func
	streamCreateWithPriority, streamDestroy, streamSynchronize, streamQuery  dl.Func
	streamWaitEvent, streamIsCapturing, streamBeginCapture, streamEndCapture dl.Func
	eventCreate, eventDestroy, eventRecord, eventQuery, eventElapsedTime     dl.Func
	graphInstantiateWithFlags, graphLaunch, graphExecDestroy, graphDestroy   dl.Func
	moduleLoadDataEx, moduleUnload, moduleGetFunction, launchKernel          dl.Func

	memGetHandleForAddressRange, flushGPUDirectRDMAWrites dl.Func // newer drivers
}

// required are the symbols that every driver must have.
func (c *functions) required() map[string]*dl.Func {
	all := map[string]*dl.Func{}
	for _, part := range []map[string]*dl.Func{c.devices(), c.memory(), c.mappings(), c.streams(), c.launches()} {
		maps.Copy(all, part)
	}
	return all
}

func (c *functions) devices() map[string]*dl.Func {
	return map[string]*dl.Func{
		"cuInit":                       &c.init,
		"cuDriverGetVersion":           &c.driverGetVersion,
		"cuGetErrorName":               &c.getErrorName,
		"cuGetErrorString":             &c.getErrorString,
		"cuDeviceGetCount":             &c.deviceGetCount,
		"cuDeviceGet":                  &c.deviceGet,
		"cuDeviceGetName":              &c.deviceGetName,
		"cuDeviceGetAttribute":         &c.deviceGetAttribute,
		"cuDeviceGetUuid_v2":           &c.deviceGetUUID,
		"cuDeviceTotalMem_v2":          &c.deviceTotalMem,
		"cuDeviceGetPCIBusId":          &c.deviceGetPCIBusID,
		"cuDeviceCanAccessPeer":        &c.deviceCanAccessPeer,
		"cuDeviceGetP2PAttribute":      &c.deviceGetP2PAttribute,
		"cuDevicePrimaryCtxRetain":     &c.devicePrimaryCtxRetain,
		"cuDevicePrimaryCtxRelease_v2": &c.devicePrimaryCtxRelease,
		"cuCtxPushCurrent_v2":          &c.ctxPushCurrent,
		"cuCtxPopCurrent_v2":           &c.ctxPopCurrent,
		"cuCtxSynchronize":             &c.ctxSynchronize,
	}
}

func (c *functions) memory() map[string]*dl.Func {
	return map[string]*dl.Func{
		"cuMemAlloc_v2":                &c.memAlloc,
		"cuMemAllocManaged":            &c.memAllocManaged,
		"cuMemFree_v2":                 &c.memFree,
		"cuMemGetInfo_v2":              &c.memGetInfo,
		"cuMemHostAlloc":               &c.memHostAlloc,
		"cuMemFreeHost":                &c.memFreeHost,
		"cuMemHostGetDevicePointer_v2": &c.memHostGetDevicePointer,
		"cuMemsetD8Async":              &c.memsetD8Async,
		"cuMemcpyHtoDAsync_v2":         &c.memcpyHtoDAsync,
		"cuMemcpyDtoHAsync_v2":         &c.memcpyDtoHAsync,
		"cuMemcpyDtoDAsync_v2":         &c.memcpyDtoDAsync,
		"cuMemGetAddressRange_v2":      &c.memGetAddressRange,
	}
}

func (c *functions) mappings() map[string]*dl.Func {
	return map[string]*dl.Func{
		"cuMemCreate":                    &c.memCreate,
		"cuMemRelease":                   &c.memRelease,
		"cuMemAddressReserve":            &c.memAddressReserve,
		"cuMemAddressFree":               &c.memAddressFree,
		"cuMemMap":                       &c.memMap,
		"cuMemUnmap":                     &c.memUnmap,
		"cuMemSetAccess":                 &c.memSetAccess,
		"cuMemGetAllocationGranularity":  &c.memGetAllocationGranularity,
		"cuMemExportToShareableHandle":   &c.memExportToShareableHandle,
		"cuMemImportFromShareableHandle": &c.memImportFromShareableHandle,
		"cuIpcGetMemHandle":              &c.ipcGetMemHandle,
		"cuIpcOpenMemHandle_v2":          &c.ipcOpenMemHandle,
		"cuIpcCloseMemHandle":            &c.ipcCloseMemHandle,
	}
}

func (c *functions) streams() map[string]*dl.Func {
	return map[string]*dl.Func{
		"cuThreadExchangeStreamCaptureMode": &c.threadExchangeStreamCaptureMode,
		"cuStreamCreateWithPriority":        &c.streamCreateWithPriority,
		"cuStreamDestroy_v2":                &c.streamDestroy,
		"cuStreamSynchronize":               &c.streamSynchronize,
		"cuStreamQuery":                     &c.streamQuery,
		"cuStreamWaitEvent":                 &c.streamWaitEvent,
		"cuStreamIsCapturing":               &c.streamIsCapturing,
		"cuStreamBeginCapture_v2":           &c.streamBeginCapture,
		"cuStreamEndCapture":                &c.streamEndCapture,
		"cuEventCreate":                     &c.eventCreate,
		"cuEventDestroy_v2":                 &c.eventDestroy,
		"cuEventRecord":                     &c.eventRecord,
		"cuEventQuery":                      &c.eventQuery,
		"cuEventElapsedTime":                &c.eventElapsedTime,
	}
}

func (c *functions) launches() map[string]*dl.Func {
	return map[string]*dl.Func{
		"cuGraphInstantiateWithFlags": &c.graphInstantiateWithFlags,
		"cuGraphLaunch":               &c.graphLaunch,
		"cuGraphExecDestroy":          &c.graphExecDestroy,
		"cuGraphDestroy":              &c.graphDestroy,
		"cuModuleLoadDataEx":          &c.moduleLoadDataEx,
		"cuModuleUnload":              &c.moduleUnload,
		"cuModuleGetFunction":         &c.moduleGetFunction,
		"cuLaunchKernel":              &c.launchKernel,
	}
}

// optional are those that newer drivers have.
func (c *functions) optional() map[string]*dl.Func {
	return map[string]*dl.Func{
		"cuMemGetHandleForAddressRange": &c.memGetHandleForAddressRange,
		"cuFlushGPUDirectRDMAWrites":    &c.flushGPUDirectRDMAWrites,
	}
}
