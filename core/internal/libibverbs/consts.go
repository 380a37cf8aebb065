package libibverbs

// Values of infiniband/verbs.h. A test compares each with the header, by the
// table in consts_test.go.
const (
	// Types and states of a queue pair.
	QPTypeRC = 2

	QPStateReset = 0
	QPStateInit  = 1
	QPStateRTR   = 2
	QPStateRTS   = 3
	QPStateErr   = 6

	// What modify_qp is to set.
	QPState           = 1 << 0
	QPAccessFlags     = 1 << 3
	QPPKeyIndex       = 1 << 4
	QPPort            = 1 << 5
	QPAV              = 1 << 7
	QPPathMTU         = 1 << 8
	QPTimeout         = 1 << 9
	QPRetryCnt        = 1 << 10
	QPRNRRetry        = 1 << 11
	QPRQPSN           = 1 << 12
	QPMaxQPRdAtomic   = 1 << 13
	QPMinRNRTimer     = 1 << 15
	QPSQPSN           = 1 << 16
	QPMaxDestRdAtomic = 1 << 17
	QPDestQPN         = 1 << 20

	// Access to memory.
	AccessLocalWrite      = 1 << 0
	AccessRemoteWrite     = 1 << 1
	AccessRemoteRead      = 1 << 2
	AccessRelaxedOrdering = 1 << 20

	// What a work request does.
	WRRDMAWrite        = 0
	WRRDMAWriteWithImm = 1
	WRSend             = 2
	WRRDMARead         = 4

	SendSignaled = 1 << 1
	SendInline   = 1 << 3

	// What a completion is of.
	WCRecv            = 1 << 7
	WCRecvRDMAWithImm = 1<<7 + 1
	WCWithImm         = 1 << 1

	GIDTypeIB     = 0
	GIDTypeRoCEv1 = 1
	GIDTypeRoCEv2 = 2

	PortActive        = 4
	LinkInfiniBand    = 1
	LinkEthernet      = 2
	MTU256            = 1
	MTU4096           = 5
	PortFlagGRH       = 1
	MaxPSN            = 1<<24 - 1
	MaxQPNumber       = 1<<24 - 1
	GIDBytes          = 16
	NumWCStatusValues = 24
)

// WCStatus is how a work request ended.
type WCStatus uint32

// The values of enum ibv_wc_status.
const (
	WCSuccess WCStatus = iota
	WCLocLenErr
	WCLocQPOpErr
	WCLocEECOpErr
	WCLocProtErr
	WCWRFlushErr
	WCMWBindErr
	WCBadRespErr
	WCLocAccessErr
	WCRemInvReqErr
	WCRemAccessErr
	WCRemOpErr
	WCRetryExcErr
	WCRNRRetryExcErr
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
	WCTMErr
	WCTMRndvIncomplete
)

// EventType is the type of an asynchronous event.
type EventType uint32

// The values of enum ibv_event_type.
const (
	EventCQErr EventType = iota
	EventQPFatal
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached
	EventQPLastWQEReached
	EventClientReregister
	EventGIDChange
	EventWQFatal
	NumEventTypes // not of the header
)
