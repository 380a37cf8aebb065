// Package libibverbs is the C library of that name as Go sees it: constants,
// mirrors of its structs, and its functions, also those that the C header
// defines inline. It holds no policy.
//
// A mirror has the C name of each field in a tag; a test compiles the C header and
// compares every size and offset. Fields that nothing here uses are left out if they are
// at the end of something that C allocates.
package libibverbs

import "structs"

// Handles are addresses of C objects. 0 is none.
type (
	Context     uintptr
	PD          uintptr
	CQ          uintptr
	QP          uintptr
	MR          uintptr
	CompChannel uintptr
)

// DeviceAttr is struct ibv_device_attr.
type DeviceAttr struct {
	_               structs.HostLayout
	FWVer           [64]byte  `c:"fw_ver"`
	NodeGUID        uint64    `c:"node_guid"`
	SysImageGUID    uint64    `c:"sys_image_guid"`
	MaxMRSize       uint64    `c:"max_mr_size"`
	PageSizeCap     uint64    `c:"page_size_cap"`
	VendorID        uint32    `c:"vendor_id"`
	VendorPartID    uint32    `c:"vendor_part_id"`
	HWVer           uint32    `c:"hw_ver"`
	MaxQP           int32     `c:"max_qp"`
	MaxQPWR         int32     `c:"max_qp_wr"`
	DeviceCapFlags  uint32    `c:"device_cap_flags"`
	MaxSGE          int32     `c:"max_sge"`
	MaxSGERd        int32     `c:"max_sge_rd"`
	MaxCQ           int32     `c:"max_cq"`
	MaxCQE          int32     `c:"max_cqe"`
	MaxMR           int32     `c:"max_mr"`
	MaxPD           int32     `c:"max_pd"`
	MaxQPRdAtom     int32     `c:"max_qp_rd_atom"`
	MaxEERdAtom     int32     `c:"max_ee_rd_atom"`
	MaxResRdAtom    int32     `c:"max_res_rd_atom"`
	MaxQPInitRdAtom int32     `c:"max_qp_init_rd_atom"`
	_               [16]int32 // what is never used here
	MaxPKeys        uint16    `c:"max_pkeys"`
	LocalCAAckDelay uint8     `c:"local_ca_ack_delay"`
	PhysPortCnt     uint8     `c:"phys_port_cnt"`
}

// PortAttr is struct ibv_port_attr.
type PortAttr struct {
	_            structs.HostLayout
	State        uint32 `c:"state"`
	MaxMTU       uint32 `c:"max_mtu"`
	ActiveMTU    uint32 `c:"active_mtu"`
	GIDTblLen    int32  `c:"gid_tbl_len"`
	PortCapFlags uint32 `c:"port_cap_flags"`
	MaxMsgSz     uint32 `c:"max_msg_sz"`
	_            [2]uint32
	PKeyTblLen   uint16 `c:"pkey_tbl_len"`
	LID          uint16 `c:"lid"`
	SMLID        uint16 `c:"sm_lid"`
	_            [7]uint8
	PhysState    uint8  `c:"phys_state"`
	LinkLayer    uint8  `c:"link_layer"`
	Flags        uint8  `c:"flags"`
	_            uint16 // written by newer libraries only
}

// GIDEntry is struct ibv_gid_entry.
type GIDEntry struct {
	_           structs.HostLayout
	GID         [GIDBytes]byte `c:"gid"`
	Index       uint32         `c:"gid_index"`
	Port        uint32         `c:"port_num"`
	Type        uint32         `c:"gid_type"`
	NDevIfIndex uint32         `c:"ndev_ifindex"`
}

// QPCap is struct ibv_qp_cap.
type QPCap struct {
	_             structs.HostLayout
	MaxSendWR     uint32 `c:"max_send_wr"`
	MaxRecvWR     uint32 `c:"max_recv_wr"`
	MaxSendSGE    uint32 `c:"max_send_sge"`
	MaxRecvSGE    uint32 `c:"max_recv_sge"`
	MaxInlineData uint32 `c:"max_inline_data"`
}

// QPInitAttr is struct ibv_qp_init_attr.
type QPInitAttr struct {
	_         structs.HostLayout
	QPContext uintptr `c:"qp_context"`
	SendCQ    CQ      `c:"send_cq"`
	RecvCQ    CQ      `c:"recv_cq"`
	SRQ       uintptr `c:"srq"`
	Cap       QPCap   `c:"cap"`
	QPType    uint32  `c:"qp_type"`
	SQSigAll  int32   `c:"sq_sig_all"`
}

// AHAttr is struct ibv_ah_attr, with struct ibv_global_route inside.
type AHAttr struct {
	_            structs.HostLayout
	DGID         [16]byte `c:"grh.dgid"`
	FlowLabel    uint32   `c:"grh.flow_label"`
	SGIDIndex    uint8    `c:"grh.sgid_index"`
	HopLimit     uint8    `c:"grh.hop_limit"`
	TrafficClass uint8    `c:"grh.traffic_class"`
	_            uint8
	DLID         uint16 `c:"dlid"`
	SL           uint8  `c:"sl"`
	SrcPathBits  uint8  `c:"src_path_bits"`
	StaticRate   uint8  `c:"static_rate"`
	IsGlobal     uint8  `c:"is_global"`
	PortNum      uint8  `c:"port_num"`
	_            uint8
}

// QPAttr is struct ibv_qp_attr.
type QPAttr struct {
	_               structs.HostLayout
	QPState         uint32 `c:"qp_state"`
	CurQPState      uint32 `c:"cur_qp_state"`
	PathMTU         uint32 `c:"path_mtu"`
	PathMigState    uint32 `c:"path_mig_state"`
	QKey            uint32 `c:"qkey"`
	RQPSN           uint32 `c:"rq_psn"`
	SQPSN           uint32 `c:"sq_psn"`
	DestQPNum       uint32 `c:"dest_qp_num"`
	QPAccessFlags   uint32 `c:"qp_access_flags"`
	Cap             QPCap  `c:"cap"`
	AH              AHAttr `c:"ah_attr"`
	AltAH           AHAttr `c:"alt_ah_attr"`
	PKeyIndex       uint16 `c:"pkey_index"`
	AltPKeyIndex    uint16 `c:"alt_pkey_index"`
	EnSQDNotify     uint8  `c:"en_sqd_async_notify"`
	SQDraining      uint8  `c:"sq_draining"`
	MaxRdAtomic     uint8  `c:"max_rd_atomic"`
	MaxDestRdAtomic uint8  `c:"max_dest_rd_atomic"`
	MinRNRTimer     uint8  `c:"min_rnr_timer"`
	PortNum         uint8  `c:"port_num"`
	Timeout         uint8  `c:"timeout"`
	RetryCnt        uint8  `c:"retry_cnt"`
	RNRRetry        uint8  `c:"rnr_retry"`
	AltPortNum      uint8  `c:"alt_port_num"`
	AltTimeout      uint8  `c:"alt_timeout"`
	_               uint8
	RateLimit       uint32 `c:"rate_limit"`
	_               uint32
}

// AsyncEvent is struct ibv_async_event.
type AsyncEvent struct {
	_       structs.HostLayout
	Element uintptr   `c:"element"` // a QP, a CQ, or a port number in the low 32 bits
	Type    EventType `c:"event_type"`
	_       uint32
}

// SGE is struct ibv_sge.
type SGE struct {
	_      structs.HostLayout
	Addr   uint64 `c:"addr"`
	Length uint32 `c:"length"`
	LKey   uint32 `c:"lkey"`
}

// SendWR is struct ibv_send_wr, of RDMA and sends.
type SendWR struct {
	_          structs.HostLayout
	WRID       uint64  `c:"wr_id"`
	Next       uintptr `c:"next"`
	SGList     uintptr `c:"sg_list"`
	NumSGE     int32   `c:"num_sge"`
	Opcode     uint32  `c:"opcode"`
	SendFlags  uint32  `c:"send_flags"`
	ImmData    uint32  `c:"imm_data"` // big-endian
	RemoteAddr uint64  `c:"wr.rdma.remote_addr"`
	RKey       uint32  `c:"wr.rdma.rkey"`
	_          uint32
	_          [9]uint64
}

// RecvWR is struct ibv_recv_wr.
type RecvWR struct {
	_      structs.HostLayout
	WRID   uint64  `c:"wr_id"`
	Next   uintptr `c:"next"`
	SGList uintptr `c:"sg_list"`
	NumSGE int32   `c:"num_sge"`
	_      uint32
}

// WC is struct ibv_wc. If Status is not WCSuccess, only WRID, Status,
// VendorErr and QPNum mean anything.
type WC struct {
	_         structs.HostLayout
	WRID      uint64   `c:"wr_id"`
	Status    WCStatus `c:"status"`
	Opcode    uint32   `c:"opcode"`
	VendorErr uint32   `c:"vendor_err"`
	ByteLen   uint32   `c:"byte_len"`
	ImmData   uint32   `c:"imm_data"` // big-endian
	QPNum     uint32   `c:"qp_num"`
	SrcQP     uint32   `c:"src_qp"`
	WCFlags   uint32   `c:"wc_flags"`
	PKeyIndex uint16   `c:"pkey_index"`
	SLID      uint16   `c:"slid"`
	_         [4]uint8
}

// ContextHead is the beginning of struct ibv_context, with what the inline
// functions use.
type ContextHead struct {
	_              structs.HostLayout
	Device         uintptr `c:"device"`
	_              [11]uintptr
	PollCQ         uintptr `c:"ops.poll_cq"`
	ReqNotifyCQ    uintptr `c:"ops.req_notify_cq"`
	_              [7]uintptr
	PostSRQRecv    uintptr `c:"ops.post_srq_recv"`
	_              [4]uintptr
	PostSend       uintptr `c:"ops.post_send"`
	PostRecv       uintptr `c:"ops.post_recv"`
	_              [5]uintptr
	CmdFD          int32 `c:"cmd_fd"`
	AsyncFD        int32 `c:"async_fd"`
	NumCompVectors int32 `c:"num_comp_vectors"`
}

// QPHead is the beginning of struct ibv_qp.
type QPHead struct {
	_      structs.HostLayout
	_      [6]uintptr
	Handle uint32 `c:"handle"`
	QPNum  uint32 `c:"qp_num"`
}

// MRBody is struct ibv_mr.
type MRBody struct {
	_      structs.HostLayout
	_      [2]uintptr
	Addr   uintptr `c:"addr"`
	Length uint64  `c:"length"`
	Handle uint32  `c:"handle"`
	LKey   uint32  `c:"lkey"`
	RKey   uint32  `c:"rkey"`
	_      uint32
}

// CompChannelBody is struct ibv_comp_channel.
type CompChannelBody struct {
	_       structs.HostLayout
	Context uintptr `c:"context"`
	FD      int32   `c:"fd"`
	RefCnt  int32   `c:"refcnt"`
}
