package libibverbs

import (
	"fmt"
	"structs"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
)

// Mlx5Soname is the library of one driver's own functions: dynamically
// connected (DC) queue pairs are among them.
const Mlx5Soname = "libmlx5.so.1"

// Values of verbs.h and mlx5dv.h that DC needs, compared as the others are.
const (
	QPTypeDriver = 255

	QPInitAttrPD           = 1 << 0
	QPInitAttrSendOpsFlags = 1 << 6

	QPExWithRDMAWrite        = 1 << 0
	QPExWithRDMAWriteWithImm = 1 << 1
	QPExWithSend             = 1 << 2
	QPExWithRDMARead         = 1 << 4

	Mlx5QPInitAttrDC = 1 << 1
	Mlx5DCTypeDCT    = 1
	Mlx5DCTypeDCI    = 2
)

// SRQ is a shared receive queue.
type SRQ uintptr

// SRQInitAttr is struct ibv_srq_init_attr.
type SRQInitAttr struct {
	_        structs.HostLayout
	Context  uintptr `c:"srq_context"`
	MaxWR    uint32  `c:"attr.max_wr"`
	MaxSGE   uint32  `c:"attr.max_sge"`
	SRQLimit uint32  `c:"attr.srq_limit"`
	_        uint32
}

// QPInitAttrEx is struct ibv_qp_init_attr_ex.
type QPInitAttrEx struct {
	_            structs.HostLayout
	QPContext    uintptr `c:"qp_context"`
	SendCQ       CQ      `c:"send_cq"`
	RecvCQ       CQ      `c:"recv_cq"`
	SRQ          SRQ     `c:"srq"`
	Cap          QPCap   `c:"cap"`
	QPType       uint32  `c:"qp_type"`
	SQSigAll     int32   `c:"sq_sig_all"`
	CompMask     uint32  `c:"comp_mask"`
	PD           PD      `c:"pd"`
	XRCD         uintptr `c:"xrcd"`
	CreateFlags  uint32  `c:"create_flags"`
	MaxTSOHeader uint16  `c:"max_tso_header"`
	_            uint16
	RWQIndTbl    uintptr    `c:"rwq_ind_tbl"`
	_            [3]uintptr // rx_hash_conf
	SourceQPN    uint32     `c:"source_qpn"`
	_            uint32
	SendOpsFlags uint64 `c:"send_ops_flags"`
}

// Mlx5QPInitAttr is struct mlx5dv_qp_init_attr.
type Mlx5QPInitAttr struct {
	_            structs.HostLayout
	CompMask     uint64 `c:"comp_mask"`
	CreateFlags  uint32 `c:"create_flags"`
	_            uint32
	DCType       uint32 `c:"dc_init_attr.dc_type"`
	_            uint32
	DCTAccessKey uint64 `c:"dc_init_attr.dct_access_key"`
	SendOpsFlags uint64 `c:"send_ops_flags"`
}

// Mlx5 is the driver's library, with what DC needs of libibverbs.
type Mlx5 struct {
	isSupported, createQP dl.Func
	createSRQ, destroySRQ dl.Func
	createAH, destroyAH   dl.Func
	toQPEx, fromQPEx      dl.Func
}

// LoadMlx5 opens the driver's library.
func LoadMlx5(l *Library) (*Mlx5, error) {
	lib, err := dl.Open(Mlx5Soname)
	if err != nil {
		return nil, err
	}
	return NewMlx5(l, lib)
}

// NewMlx5 finds the functions of an open library.
func NewMlx5(l *Library, lib *dl.Library) (*Mlx5, error) {
	m := &Mlx5{
		createSRQ: l.call.createSRQ, destroySRQ: l.call.destroySRQ,
		createAH: l.call.createAH, destroyAH: l.call.destroyAH, toQPEx: l.call.toQPEx,
	}
	for _, f := range []dl.Func{m.createSRQ, m.destroySRQ, m.createAH, m.destroyAH, m.toQPEx} {
		if f == 0 {
			return nil, fmt.Errorf("%w: %s is too old for DC", dl.ErrNoSymbol, l.name)
		}
	}
	err := lib.LookupAll(map[string]*dl.Func{
		"mlx5dv_is_supported":         &m.isSupported,
		"mlx5dv_create_qp":            &m.createQP,
		"mlx5dv_qp_ex_from_ibv_qp_ex": &m.fromQPEx,
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// IsSupported reports whether an open device is this driver's.
func (m *Mlx5) IsSupported(ctx Context) bool {
	return m.isSupported.Call(dl.At[ContextHead](uintptr(ctx)).Device)&0xff != 0 // a C bool
}

// CreateQP makes a queue pair of the driver's own kind.
func (m *Mlx5) CreateQP(ctx Context, attr *QPInitAttrEx, own *Mlx5QPInitAttr) (QP, error) {
	qp, errno := m.createQP.CallErrno(uintptr(ctx), uintptr(unsafe.Pointer(attr)), uintptr(unsafe.Pointer(own)))
	qp, err := object("mlx5dv_create_qp", qp, errno)
	return QP(qp), err
}

// CreateSRQ makes a shared receive queue, which a DC target needs.
func (m *Mlx5) CreateSRQ(pd PD, attr *SRQInitAttr) (SRQ, error) {
	srq, errno := m.createSRQ.CallErrno(uintptr(pd), uintptr(unsafe.Pointer(attr)))
	srq, err := object("ibv_create_srq", srq, errno)
	return SRQ(srq), err
}

// DestroySRQ frees one.
func (m *Mlx5) DestroySRQ(srq SRQ) error {
	return returned("ibv_destroy_srq", m.destroySRQ.Call(uintptr(srq)))
}
