package libibverbs

import (
	"syscall"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
)

// HasIova2 reports whether the library can register memory with optional
// access, such as relaxed ordering.
func (l *Library) HasIova2() bool { return l.call.regMRIova2 != 0 }

// RegMR registers memory outside the Go heap. Optional access needs HasIova2.
func (l *Library) RegMR(pd PD, addr uintptr, n uint64, access uint32) (MR, error) {
	var mr uintptr
	var errno syscall.Errno
	if l.HasIova2() {
		mr, errno = l.call.regMRIova2.CallErrno(uintptr(pd), addr, uintptr(n), addr, uintptr(access))
	} else {
		mr, errno = l.call.regMR.CallErrno(uintptr(pd), addr, uintptr(n), uintptr(access))
	}
	mr, err := object("ibv_reg_mr", mr, errno)
	return MR(mr), err
}

// HasDmabuf reports whether RegDmabufMR can be called.
func (l *Library) HasDmabuf() bool { return l.call.regDmabufMR != 0 }

// RegDmabufMR registers n bytes at an offset of a dma-buf, which requests name
// by addresses from iova on.
func (l *Library) RegDmabufMR(pd PD, off, n, iova uint64, fd int, access uint32) (MR, error) {
	mr, errno := l.call.regDmabufMR.CallErrno(uintptr(pd), uintptr(off), uintptr(n), uintptr(iova), uintptr(fd), uintptr(access))
	mr, err := object("ibv_reg_dmabuf_mr", mr, errno)
	return MR(mr), err
}

// Body is the registration's C struct.
func (mr MR) Body() *MRBody { return dl.At[MRBody](uintptr(mr)) }

// DeregMR ends a registration.
func (l *Library) DeregMR(mr MR) error {
	return returned("ibv_dereg_mr", l.call.deregMR.Call(uintptr(mr)))
}

// CreateCompChannel makes a channel for completion events.
func (l *Library) CreateCompChannel(ctx Context) (CompChannel, error) {
	ch, errno := l.call.createCompChannel.CallErrno(uintptr(ctx))
	ch, err := object("ibv_create_comp_channel", ch, errno)
	return CompChannel(ch), err
}

// FD is the descriptor that becomes readable with an event. It belongs to the
// channel.
func (ch CompChannel) FD() int { return int(dl.At[CompChannelBody](uintptr(ch)).FD) }

// DestroyCompChannel frees a channel. Its queues come first.
func (l *Library) DestroyCompChannel(ch CompChannel) error {
	return returned("ibv_destroy_comp_channel", l.call.destroyCompChannel.Call(uintptr(ch)))
}

// CreateCQ makes a completion queue with room for at least n completions.
func (l *Library) CreateCQ(ctx Context, n int, ch CompChannel) (CQ, error) {
	cq, errno := l.call.createCQ.CallErrno(uintptr(ctx), uintptr(n), 0, uintptr(ch), 0)
	cq, err := object("ibv_create_cq", cq, errno)
	return CQ(cq), err
}

// DestroyCQ frees a completion queue. Its queue pairs come first.
func (l *Library) DestroyCQ(cq CQ) error {
	return returned("ibv_destroy_cq", l.call.destroyCQ.Call(uintptr(cq)))
}

// CreateQP makes a queue pair; attr.Cap is set to what the device gives.
func (l *Library) CreateQP(pd PD, attr *QPInitAttr) (QP, error) {
	qp, errno := l.call.createQP.CallErrno(uintptr(pd), uintptr(unsafe.Pointer(attr)))
	qp, err := object("ibv_create_qp", qp, errno)
	return QP(qp), err
}

// Num is the queue pair's number on its device.
func (qp QP) Num() uint32 { return dl.At[QPHead](uintptr(qp)).QPNum }

// ModifyQP sets what mask says.
func (l *Library) ModifyQP(qp QP, attr *QPAttr, mask uint32) error {
	r := l.call.modifyQP.Call(uintptr(qp), uintptr(unsafe.Pointer(attr)), uintptr(mask))
	return returned("ibv_modify_qp", r)
}

// DestroyQP frees a queue pair. It blocks until its events are acknowledged.
func (l *Library) DestroyQP(qp QP) error {
	return returned("ibv_destroy_qp", l.call.destroyQP.Call(uintptr(qp)))
}

// AsyncFD is the descriptor that becomes readable with an asynchronous event.
// It belongs to the context.
func (ctx Context) AsyncFD() int { return int(dl.At[ContextHead](uintptr(ctx)).AsyncFD) }

// GetAsyncEvent takes one event; EAGAIN if the descriptor does not block and
// there is none. Every event has to be acknowledged.
func (l *Library) GetAsyncEvent(ctx Context) (*AsyncEvent, error) {
	event := new(AsyncEvent)
	r, errno := l.call.getAsyncEvent.CallErrno(uintptr(ctx), uintptr(unsafe.Pointer(event)))
	if int32(r) != 0 {
		return nil, failed("ibv_get_async_event", max(errno, 1))
	}
	return event, nil
}

// AckAsyncEvent acknowledges an event. Destroying what it is of waits for that.
func (l *Library) AckAsyncEvent(event *AsyncEvent) {
	l.call.ackAsyncEvent.Call(uintptr(unsafe.Pointer(event)))
}
