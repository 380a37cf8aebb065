package libcuda

import "unsafe"

// DeviceCount is how many devices this process may see.
func (l *Library) DeviceCount() (int, error) {
	n := new(int32)
	err := l.check("cuDeviceGetCount", l.call.deviceGetCount.Call(uintptr(unsafe.Pointer(n))))
	return int(*n), err
}

// Device is the device with an ordinal.
func (l *Library) Device(ordinal int) (Device, error) {
	d := new(Device)
	err := l.check("cuDeviceGet", l.call.deviceGet.Call(uintptr(unsafe.Pointer(d)), uintptr(ordinal)))
	return *d, err
}

// DeviceName is the maker's name of a device.
func (l *Library) DeviceName(d Device) (string, error) {
	text := make([]byte, 128)
	r := l.call.deviceGetName.Call(uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)), uintptr(d))
	return cut(text), l.check("cuDeviceGetName", r)
}

// DevicePCIBusID is a device's address, as sysfs writes it.
func (l *Library) DevicePCIBusID(d Device) (string, error) {
	text := make([]byte, MaxPCIBusIDBytes)
	r := l.call.deviceGetPCIBusID.Call(uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)), uintptr(d))
	return cut(text), l.check("cuDeviceGetPCIBusId", r)
}

// cut is the text before its terminating zero.
func cut(text []byte) string {
	for i, b := range text {
		if b == 0 {
			return string(text[:i])
		}
	}
	return string(text)
}

// DeviceUUID names a device (or a part of one) the same in all processes.
func (l *Library) DeviceUUID(d Device) (UUID, error) {
	id := new(UUID)
	r := l.call.deviceGetUUID.Call(uintptr(unsafe.Pointer(id)), uintptr(d))
	return *id, l.check("cuDeviceGetUuid_v2", r)
}

// DeviceAttribute is one of the Attr constants' values.
func (l *Library) DeviceAttribute(d Device, attribute int) (int, error) {
	v := new(int32)
	r := l.call.deviceGetAttribute.Call(uintptr(unsafe.Pointer(v)), uintptr(attribute), uintptr(d))
	return int(*v), l.check("cuDeviceGetAttribute", r)
}

// DeviceTotalBytes is a device's memory.
func (l *Library) DeviceTotalBytes(d Device) (uint64, error) {
	n := new(uint64)
	r := l.call.deviceTotalMem.Call(uintptr(unsafe.Pointer(n)), uintptr(d))
	return *n, l.check("cuDeviceTotalMem_v2", r)
}

// CanAccessPeer reports whether a device can map another one's memory.
func (l *Library) CanAccessPeer(d, peer Device) (bool, error) {
	can := new(int32)
	r := l.call.deviceCanAccessPeer.Call(uintptr(unsafe.Pointer(can)), uintptr(d), uintptr(peer))
	return *can != 0, l.check("cuDeviceCanAccessPeer", r)
}

// P2PAttribute is one of the P2P constants' values for what device d does with a
// peer's memory. It is an error of the driver if the two are one device.
func (l *Library) P2PAttribute(d, peer Device, attribute int) (int, error) {
	v := new(int32)
	r := l.call.deviceGetP2PAttribute.Call(uintptr(unsafe.Pointer(v)), uintptr(attribute), uintptr(d), uintptr(peer))
	return int(*v), l.check("cuDeviceGetP2PAttribute", r)
}
