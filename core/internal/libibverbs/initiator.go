package libibverbs

import (
	"runtime"
	"structs"
	"syscall"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
)

// AH is an address handle: where packets go.
type AH uintptr

// CreateAH makes one. On Ethernet the kernel looks up the peer's hardware
// address, which may take about a second.
func (m *Mlx5) CreateAH(pd PD, attr *AHAttr) (AH, error) {
	ah, errno := m.createAH.CallErrno(uintptr(pd), uintptr(unsafe.Pointer(attr)))
	ah, err := object("ibv_create_ah", ah, errno)
	return AH(ah), err
}

// DestroyAH frees one. No request names it any more.
func (m *Mlx5) DestroyAH(ah AH) error {
	return returned("ibv_destroy_ah", m.destroyAH.Call(uintptr(ah)))
}

// SRQPoster makes a Poster for a shared receive queue.
func (ctx Context) SRQPoster(srq SRQ, bad uintptr) *Poster {
	head := dl.At[ContextHead](uintptr(ctx))
	return &Poster{qp: uintptr(srq), post: dl.Func(head.PostSRQRecv).Hot(), bad: bad}
}

// QPExHead is the beginning of struct ibv_qp_ex, whose functions build work
// requests. struct ibv_qp is at its beginning.
type QPExHead struct {
	_             structs.HostLayout
	_             [20]uintptr // qp_base
	CompMask      uint64      `c:"comp_mask"`
	WRID          uint64      `c:"wr_id"`
	WRFlags       uint32      `c:"wr_flags"`
	_             uint32
	_             [4]uintptr
	RDMARead      uintptr `c:"wr_rdma_read"`
	RDMAWrite     uintptr `c:"wr_rdma_write"`
	RDMAWriteImm  uintptr `c:"wr_rdma_write_imm"`
	Send          uintptr `c:"wr_send"`
	_             [5]uintptr
	SetInlineData uintptr `c:"wr_set_inline_data"`
	_             [2]uintptr
	SetSGEList    uintptr `c:"wr_set_sge_list"`
	Start         uintptr `c:"wr_start"`
	Complete      uintptr `c:"wr_complete"`
	Abort         uintptr `c:"wr_abort"`
}

// Mlx5QPExHead is the beginning of struct mlx5dv_qp_ex.
type Mlx5QPExHead struct {
	_         structs.HostLayout
	CompMask  uint64  `c:"comp_mask"`
	SetDCAddr uintptr `c:"wr_set_dc_addr"`
}

// DCTarget is where a request of an initiator goes.
type DCTarget struct {
	AH     AH
	Number uint32
	Key    uint64
}

// Initiator posts on a DC initiator, by the functions that its queue pair
// brings along. One goroutine at a time; nothing allocates.
type Initiator struct {
	qp, own                      uintptr // ibv_qp_ex, mlx5dv_qp_ex
	head                         *QPExHead
	start, complete, send        *dl.Hot
	read, write, writeImm        *dl.Hot
	setPieces, setInline, setDCT *dl.Hot
}

// Initiator finds the functions of a queue pair that CreateQP made with
// SendOpsFlags.
func (m *Mlx5) Initiator(qp QP) (*Initiator, error) {
	x := m.toQPEx.Call(uintptr(qp))
	if x == 0 {
		return nil, failed("ibv_qp_to_qp_ex", syscall.EOPNOTSUPP)
	}
	own := m.fromQPEx.Call(x)
	if own == 0 {
		return nil, failed("mlx5dv_qp_ex_from_ibv_qp_ex", syscall.EOPNOTSUPP)
	}
	head := dl.At[QPExHead](x)
	i := &Initiator{qp: x, own: own, head: head}
	for _, f := range []struct {
		of   uintptr
		into **dl.Hot
	}{
		{head.Start, &i.start}, {head.Complete, &i.complete}, {head.Send, &i.send},
		{head.RDMARead, &i.read}, {head.RDMAWrite, &i.write}, {head.RDMAWriteImm, &i.writeImm},
		{head.SetSGEList, &i.setPieces}, {head.SetInlineData, &i.setInline},
		{dl.At[Mlx5QPExHead](own).SetDCAddr, &i.setDCT},
	} {
		if f.of == 0 {
			return nil, failed("functions of the queue pair", syscall.EOPNOTSUPP)
		}
		*f.into = dl.Func(f.of).Hot()
	}
	return i, nil
}

// Begin begins a batch of requests, which End ends. The driver may hold a lock
// of its own from here on, so the thread stays the same.
func (i *Initiator) Begin() {
	runtime.LockOSThread()
	i.start.Call(i.qp, 0, 0)
}

// Add adds a request to the batch. wr is as it would be posted on a reliable
// connected queue pair; a request that is inline has its bytes in one piece,
// anywhere outside the Go heap.
func (i *Initiator) Add(wr *SendWR, to *DCTarget) {
	i.head.WRID, i.head.WRFlags = wr.WRID, wr.SendFlags&^SendInline
	i.operation(wr)
	if wr.SendFlags&SendInline != 0 && wr.NumSGE == 1 {
		data := dl.At[SGE](wr.SGList)
		i.setInline.Call(i.qp, uintptr(data.Addr), uintptr(data.Length))
	} else { // of nothing, too: the driver counts what it was told
		i.setPieces.Call(i.qp, uintptr(wr.NumSGE), wr.SGList)
	}
	i.setDCT.CallAll(&[dl.MaxHotArgs]uintptr{i.own, uintptr(to.AH), uintptr(to.Number), uintptr(to.Key)})
}

func (i *Initiator) operation(wr *SendWR) {
	switch wr.Opcode {
	case WRRDMAWrite:
		i.write.Call(i.qp, uintptr(wr.RKey), uintptr(wr.RemoteAddr))
	case WRRDMAWriteWithImm:
		i.writeImm.CallAll(&[dl.MaxHotArgs]uintptr{i.qp, uintptr(wr.RKey), uintptr(wr.RemoteAddr), uintptr(wr.ImmData)})
	case WRRDMARead:
		i.read.Call(i.qp, uintptr(wr.RKey), uintptr(wr.RemoteAddr))
	default:
		i.send.Call(i.qp, 0, 0)
	}
}

// End hands the batch to the device: all of it, or with an error nothing.
func (i *Initiator) End() syscall.Errno {
	defer runtime.UnlockOSThread()
	r := int32(i.complete.Call(i.qp, 0, 0))
	if r < 0 {
		r = -r
	}
	return syscall.Errno(r)
}
