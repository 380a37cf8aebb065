package libibverbs

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/origin"
)

// Soname is the library's name; the loader finds it. It is never bundled,
// because the drivers that it loads belong to the host.
const Soname = "libibverbs.so.1"

// Library is libibverbs, opened. Safe for concurrent use, as the C library is.
type Library struct {
	name string
	call functions
}

// functions are the symbols, by their C names less "ibv_".
type functions struct {
	getDeviceList, freeDeviceList, getDeviceName, openDevice, closeDevice dl.Func
	queryDevice, queryPort, queryGID                                      dl.Func
	allocPD, deallocPD, regMR, deregMR                                    dl.Func
	createCompChannel, destroyCompChannel, getCQEvent, ackCQEvents        dl.Func
	createCQ, destroyCQ, createQP, modifyQP, destroyQP                    dl.Func
	getAsyncEvent, ackAsyncEvent                                          dl.Func
	regMRIova2, queryGIDTable, regDmabufMR                                dl.Func // newer libraries
	createSRQ, destroySRQ, createAH, destroyAH, toQPEx                    dl.Func // of DC alone
}

// Load opens the library by its soname.
func Load() (*Library, error) {
	lib, err := dl.Open(Soname)
	if err != nil {
		return nil, err
	}
	return New(lib)
}

// New finds the functions of an open library.
func New(lib *dl.Library) (*Library, error) {
	l := &Library{name: lib.Name()}
	if err := lib.LookupAll(l.call.required()); err != nil {
		return nil, err
	}
	l.call.regMRIova2, _ = lib.Lookup("ibv_reg_mr_iova2")
	l.call.regDmabufMR, _ = lib.Lookup("ibv_reg_dmabuf_mr")
	l.call.queryGIDTable, _ = lib.Lookup("_ibv_query_gid_table")
	for symbol, f := range map[string]*dl.Func{
		"ibv_create_srq": &l.call.createSRQ, "ibv_destroy_srq": &l.call.destroySRQ,
		"ibv_create_ah": &l.call.createAH, "ibv_destroy_ah": &l.call.destroyAH,
		"ibv_qp_to_qp_ex": &l.call.toQPEx,
	} {
		*f, _ = lib.Lookup(symbol)
	}
	return l, nil
}

func (c *functions) required() map[string]*dl.Func {
	return map[string]*dl.Func{
		"ibv_get_device_list":      &c.getDeviceList,
		"ibv_free_device_list":     &c.freeDeviceList,
		"ibv_get_device_name":      &c.getDeviceName,
		"ibv_open_device":          &c.openDevice,
		"ibv_close_device":         &c.closeDevice,
		"ibv_query_device":         &c.queryDevice,
		"ibv_query_port":           &c.queryPort,
		"ibv_query_gid":            &c.queryGID,
		"ibv_alloc_pd":             &c.allocPD,
		"ibv_dealloc_pd":           &c.deallocPD,
		"ibv_reg_mr":               &c.regMR,
		"ibv_dereg_mr":             &c.deregMR,
		"ibv_create_comp_channel":  &c.createCompChannel,
		"ibv_destroy_comp_channel": &c.destroyCompChannel,
		"ibv_get_cq_event":         &c.getCQEvent,
		"ibv_ack_cq_events":        &c.ackCQEvents,
		"ibv_create_cq":            &c.createCQ,
		"ibv_destroy_cq":           &c.destroyCQ,
		"ibv_create_qp":            &c.createQP,
		"ibv_modify_qp":            &c.modifyQP,
		"ibv_destroy_qp":           &c.destroyQP,
		"ibv_get_async_event":      &c.getAsyncEvent,
		"ibv_ack_async_event":      &c.ackAsyncEvent,
	}
}

// Name is the file or soname that was opened.
func (l *Library) Name() string { return l.name }

// failed makes an error of a call's name and an error number; nil for 0.
func failed(call string, errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return origin.Mark(fmt.Errorf("%s: %w", call, errno))
}

// returned is failed for functions that return the error number. Some old
// drivers return it negative, or -1.
func returned(call string, r uintptr) error {
	n := int32(r)
	if n < 0 {
		n = -n
	}
	return failed(call, syscall.Errno(n))
}

// object is failed for functions that return an address and report by errno.
func object(call string, addr uintptr, errno syscall.Errno) (uintptr, error) {
	if addr != 0 {
		return addr, nil
	}
	if errno == 0 { // some drivers forget it
		errno = syscall.EINVAL
	}
	return 0, failed(call, errno)
}

// DeviceNames lists the devices of this host.
func (l *Library) DeviceNames() ([]string, error) {
	var names []string
	err := l.eachDevice(func(_ uintptr, name string) bool {
		names = append(names, name)
		return true
	})
	return names, err
}

// OpenDevice opens a device by name; ENODEV if there is none.
func (l *Library) OpenDevice(name string) (Context, error) {
	ctx, openErr := uintptr(0), failed("ibv_open_device "+name, syscall.ENODEV)
	err := l.eachDevice(func(device uintptr, found string) bool {
		if found != name {
			return true
		}
		addr, errno := l.call.openDevice.CallErrno(device)
		ctx, openErr = object("ibv_open_device "+name, addr, errno)
		return false
	})
	if err != nil {
		return 0, err
	}
	return Context(ctx), openErr
}

// eachDevice calls f with each device until it returns false.
func (l *Library) eachDevice(f func(device uintptr, name string) bool) error {
	var n int32
	list, errno := l.call.getDeviceList.CallErrno(uintptr(unsafe.Pointer(&n)))
	if list == 0 {
		return failed("ibv_get_device_list", max(errno, 1))
	}
	defer l.call.freeDeviceList.Call(list)
	for i := range uintptr(n) {
		device := *dl.At[uintptr](list + i*unsafe.Sizeof(list))
		if !f(device, dl.String(l.call.getDeviceName.Call(device))) {
			break
		}
	}
	return nil
}

// CloseDevice closes what OpenDevice opened.
func (l *Library) CloseDevice(ctx Context) error {
	return returned("ibv_close_device", l.call.closeDevice.Call(uintptr(ctx)))
}

// QueryDevice reads a device's limits.
func (l *Library) QueryDevice(ctx Context) (*DeviceAttr, error) {
	attr := new(DeviceAttr)
	r := l.call.queryDevice.Call(uintptr(ctx), uintptr(unsafe.Pointer(attr)))
	return attr, returned("ibv_query_device", r)
}

// QueryPort reads a port's state.
func (l *Library) QueryPort(ctx Context, port uint8) (*PortAttr, error) {
	attr := new(PortAttr)
	r := l.call.queryPort.Call(uintptr(ctx), uintptr(port), uintptr(unsafe.Pointer(attr)))
	return attr, returned("ibv_query_port", r)
}

// QueryGID reads an entry of a port's table of addresses.
func (l *Library) QueryGID(ctx Context, port uint8, index int) ([GIDBytes]byte, error) {
	gid := new([GIDBytes]byte)
	r, errno := l.call.queryGID.CallErrno(uintptr(ctx), uintptr(port), uintptr(index), uintptr(unsafe.Pointer(gid)))
	if int32(r) != 0 {
		return *gid, failed("ibv_query_gid", max(errno, 1))
	}
	return *gid, nil
}

// HasGIDTable reports whether QueryGIDTable can be called.
func (l *Library) HasGIDTable() bool { return l.call.queryGIDTable != 0 }

// QueryGIDTable reads up to most used entries of all ports' tables.
func (l *Library) QueryGIDTable(ctx Context, most int) ([]GIDEntry, error) {
	entries := make([]GIDEntry, most)
	r := int64(l.call.queryGIDTable.Call(uintptr(ctx), uintptr(unsafe.Pointer(unsafe.SliceData(entries))),
		uintptr(most), 0, unsafe.Sizeof(entries[0])))
	if r < 0 {
		return nil, failed("ibv_query_gid_table", syscall.Errno(-r))
	}
	return entries[:r], nil
}

// AllocPD makes a protection domain.
func (l *Library) AllocPD(ctx Context) (PD, error) {
	pd, errno := l.call.allocPD.CallErrno(uintptr(ctx))
	pd, err := object("ibv_alloc_pd", pd, errno)
	return PD(pd), err
}

// DeallocPD frees a protection domain.
func (l *Library) DeallocPD(pd PD) error {
	return returned("ibv_dealloc_pd", l.call.deallocPD.Call(uintptr(pd)))
}
