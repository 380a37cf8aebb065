package cuda

import (
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/rankset"
)

// The mirrors of kernels/control_words.cuh. A test compares every offset and value
// with what a C++ compiler says.

// Bounds of the kernels.
const (
	MaxSlots = 8
	MaxTopK  = 64
	openRing = 16
	// RecordRing is how many records the device keeps for the host.
	RecordRing  = 1024
	recordWords = 16
)

// inbox is what one peer pushes into a rank's memory.
type inbox struct {
	Open     [openRing]uint64 `c:"open"`
	YReady   [MaxSlots]uint64 `c:"y_ready"`
	RowOrder [MaxSlots]uint64 `c:"row_order"`
}

// arena is how a rank's shared memory begins.
type arena struct {
	From [rankset.MaxRanks]inbox `c:"from"`
}

// slab is layout.Slab, as the kernels take it.
type slab struct {
	Params        int64                   `c:"params"`
	Arrive        int64                   `c:"arrive"`
	Done          int64                   `c:"done"`
	Counter       int64                   `c:"counter"`
	Layout        int64                   `c:"layout"`
	SrcInfo       int64                   `c:"src_info"`
	Scales        int64                   `c:"scales"`
	Rows          int64                   `c:"rows"`
	Y             int64                   `c:"y"`
	RowsPerExpert int64                   `c:"rows_per_expert"`
	RowBytes      int64                   `c:"row_bytes"`
	OutputBytes   int64                   `c:"output_bytes"`
	ScaleWords    int64                   `c:"scale_words"`
	Counted       int64                   `c:"counted"`
	TopkIdx       int64                   `c:"topk_idx"`
	TopkWeights   int64                   `c:"topk_weights"`
	Extra         [layout.NumExtras]int64 `c:"extra"`
	ExtraBytes    [layout.NumExtras]int32 `c:"extra_bytes"`
}

// inFlight is what is known of a slot's operation until its record is written.
type inFlight struct {
	Start       uint64                   `c:"start"`
	Place       uint64                   `c:"place"`
	Sent        uint64                   `c:"sent"`
	Resume      uint64                   `c:"resume"`
	Seen        uint64                   `c:"seen"`
	Wait        uint64                   `c:"wait"`
	Alone       uint64                   `c:"alone"`
	Missing     uint64                   `c:"missing"`
	Last        uint64                   `c:"last"`
	Copied      uint64                   `c:"copied"`
	NumReceived uint32                   `c:"num_received"`
	NumPulled   uint32                   `c:"num_pulled"`
	RowsTo      [rankset.MaxRanks]uint32 `c:"rows_to"`
	RowsFrom    [rankset.MaxRanks]uint32 `c:"rows_from"`
}

// waitTimes is when a rank was waited for.
type waitTimes struct {
	Began uint64 `c:"began"`
	Came  uint64 `c:"came"`
}

// Record is one operation that has ended, as the device has written it. Times
// are ns of the device's clock; 0: not known.
type Record struct {
	Kind                             uint64 `c:"kind"`
	Op                               uint64 `c:"op"`
	Start, Place, Sent, Resume, Seen uint64
	End                              uint64 `c:"end"`
	Wait, Alone                      uint64
	Missing                          uint64 `c:"missing"`
	RowsOut, RowsIn, Tokens, Bytes   uint64
	Copied                           uint64 `c:"copied"`
}

// counters is what the device has counted, in memory of the host. Behind it are the
// rows that each local expert was sent.
type counters struct {
	NumRecords uint64 `c:"num_records"`
	Current    uint64 `c:"current"`
	Since      uint64 `c:"since"`
	NumExperts uint64 `c:"num_experts"`
	_          [4]uint64
	RowsTo     [rankset.MaxRanks]uint64    `c:"rows_to"`
	RowsFrom   [rankset.MaxRanks]uint64    `c:"rows_from"`
	WaitFor    [2][rankset.MaxRanks]uint64 `c:"wait_for"`
	Ring       [RecordRing]Record          `c:"ring"`
}

// What an operation is, in Record.Kind and counters.Current.
const (
	recordDispatch  = 1
	recordCombine   = 2
	countersReaders = 3
)

// slot is what a rank keeps to itself of one slot.
type slot struct {
	Op       uint64                  `c:"op"`
	Writers  uint64                  `c:"writers"`
	Owners   uint64                  `c:"owners"`
	Unopened uint64                  `c:"unopened"`
	Sent     uint64                  `c:"sent"`
	Counted  uint64                  `c:"counted"`
	Combines uint64                  `c:"combines"`
	Released uint64                  `c:"released"`
	Finished [8]uint32               `c:"finished"`
	SlabOf   [rankset.MaxRanks]uint8 `c:"slab_of"`
	Call     [4]uint32               `c:"call"`
	Reduced  uint64                  `c:"reduced"`
	Ticket   uint64                  `c:"ticket"`
	Placed   uint64                  `c:"placed"`
	Ordered  uint64                  `c:"ordered"`
	TopK     uint64                  `c:"topk"`
	Extras   uint64                  `c:"extras"`
	Tokens   uint64                  `c:"tokens"`
	Lacks    uint64                  `c:"lacks"`
	Slab     slab                    `c:"slab"`
	InFlight inFlight                `c:"inflight"`
}

// remoteRest is what is left to send to a remote rank of a slot's operation.
type remoteRest struct {
	Turn   uint64 `c:"turn"`
	Kind   uint64 `c:"kind"`
	Next   uint64 `c:"next"`
	Op     uint64 `c:"op"`
	Number uint64 `c:"number"`
}

// state is the device's side of one buffer.
type state struct {
	NextOp     uint64 `c:"next_op"`
	Failed     uint64 `c:"failed"`
	WaitsEnded uint64 `c:"waits_ended"`

	Waited     uint64                      `c:"waited"`
	NumRecords uint64                      `c:"num_records"`
	Remote     uint64                      `c:"remote"`
	RemoteDone uint64                      `c:"remote_done"`
	Shown      uint64                      `c:"shown"`
	Epoch      uint64                      `c:"epoch"`
	In         uint64                      `c:"in"`
	Wild       uint64                      `c:"wild"`
	Slot       [MaxSlots]slot              `c:"slot"`
	WaitTimes  [rankset.MaxRanks]waitTimes `c:"wait_times"`
	RowsTo     [rankset.MaxRanks]uint64    `c:"rows_to"`
	RowsFrom   [rankset.MaxRanks]uint64    `c:"rows_from"`
	WaitFor    [2][rankset.MaxRanks]uint64 `c:"wait_for"`

	Rest [MaxSlots][rankset.MaxRanks]remoteRest `c:"rest"`
}

// hostControl is what the host says, in memory that the device sees.
type hostControl struct {
	Members  uint64 `c:"members"`
	Quiesced uint64 `c:"quiesced"`
	_        [6]uint64
}

// report is what the device says to the host.
type report struct {
	TimedOut [rankset.MaxRanks]uint64 `c:"timed_out"`
	Error    uint64                   `c:"error"`
	Detail   [4]uint64                `c:"detail"`
	Ops      uint64                   `c:"ops"`
	_        [2]uint64
	Waits    [rankset.MaxRanks]uint64 `c:"waits"`
	Wild     [rankset.MaxRanks]uint64 `c:"wild"`
	Held     [rankset.MaxRanks]uint64 `c:"held"`
}

// Errors of the device, in report.Error.
const (
	errorExpert   = 1
	errorMismatch = 2
	errorCapacity = 3
	errorFenced   = 4
	errorNoHost   = 5
	errorReleased = 6
	errorStale    = 7
	errorProxy    = 16
	errorMessage  = 17
	errorNear     = 18
	errorRouting  = 8
	errorWeights  = 9
	errorWild     = 10
)

// Flags of an operation.
const (
	flagFP8         = 1
	flagFP32Outputs = 2
	flagScalesShift = 2
	flagFlat        = 0x10
	flagNoRouting   = 0x20
	flagOrdered     = 0x40
	flagPreReduce   = 0x80
	flagHasMore     = 0x100
	flagFill        = 0x200   // of the plan only, by Config.DebugFill
	flagRemote      = 0x10000 // the engine's own, and what follows
	flagSplit       = 0x20000
	flagRest        = 0x40000
)

// address is one in a device's address space.
type address = uint64

// common is what every kernel is given.
type common struct {
	State        address `c:"state"`
	Bases        address `c:"bases"`
	HostControl  address `c:"host_control"`
	Report       address `c:"report"`
	Counters     address `c:"counters"`
	TimeoutNs    int64   `c:"timeout_ns"`
	SlabOff      int64   `c:"slab_off"`
	SlabBytes    int64   `c:"slab_bytes"`
	Slab         slab    `c:"slab"`
	Rank         int32   `c:"rank"`
	NumRanks     int32   `c:"num_ranks"`
	NumExperts   int32   `c:"num_experts"`
	LocalExperts int32   `c:"local_experts"`
	NumTokens    int32   `c:"num_tokens"`
	MaxTokens    int32   `c:"max_tokens"`
	Hidden       int32   `c:"hidden"`
	TopK         int32   `c:"topk"`
	Slot         int32   `c:"slot"`
	NumSlots     int32   `c:"num_slots"`
	Flags        uint32  `c:"flags"`
	NumBlocks    int32   `c:"num_blocks"`
	BlockExperts int32   `c:"block_experts"`
	Ticket       uint64  `c:"ticket"`
	Active       address `c:"active"`
	TopkIdx      address `c:"topk_idx"`
	WaitNs       address `c:"wait_ns"`
}

type planArgs struct {
	Common common  `c:"c"`
	Count  address `c:"count"`
	Base   address `c:"base"`
	Index  address `c:"index"`
}

type placeArgs struct {
	Common  common                    `c:"c"`
	X       address                   `c:"x"`
	Count   address                   `c:"count"`
	Base    address                   `c:"base"`
	Index   address                   `c:"index"`
	Where   address                   `c:"where"`
	Weights address                   `c:"weights"`
	Kept    address                   `c:"kept"`
	Extra   [layout.NumExtras]address `c:"extra"`
}

type receiveArgs struct {
	Common        common  `c:"c"`
	RecvCount     address `c:"recv_count"`
	Layout        address `c:"layout"`
	Stats         address `c:"stats"`
	PeersHaveMore address `c:"peers_have_more"`
	Rows          address `c:"rows"`
	Experts       address `c:"experts"`
}

type publishArgs struct {
	Common  common  `c:"c"`
	Outputs address `c:"outputs"`
	Rows    address `c:"rows"`
}

type waitArgs struct {
	Common common  `c:"c"`
	Use    address `c:"use"`
	Where  address `c:"where"`
}

type reduceArgs struct {
	Common  common  `c:"c"`
	Where   address `c:"where"`
	Weights address `c:"weights"`
	Out     address `c:"out"`
	Use     address `c:"use"`
	Kept    address `c:"kept"`
}
