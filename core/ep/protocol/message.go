package protocol

// Messages between hosts that the CPU makes; docs/wire.md has the tables.
const (
	MessageVersion = 1

	MessageControlWords = 1 // open, y_ready and done of one slot
	MessageRows         = 2 // a piece of one source's rows
	MessageOutputs      = 3 // a piece of the outputs for one source
)

// Messages between devices; both ends are kernels of one build.
//
//mw:kernels
const (
	RemoteRows     = 1
	RemoteOutputs  = 2
	RemoteCounts   = 3
	RemoteReleased = 4 // the owner has released the operation, and there will be no outputs of combine `number + 1`

	RemoteAgeBits = 16 // of the age of an operation that the sender holds
	RemoteOldest  = 1<<RemoteAgeBits - 1
	RemoteAges    = 64 / RemoteAgeBits // in a word

	RemoteSlack = 8*16 + 64 // bytes that aligning the parts of a message may take, of each at most
)

// What a kernel asks of the host's proxy, in a descriptor of the queue.
//
//mw:kernels
const (
	RemoteSend    = 1 // the lease of that number has a message of `bytes`
	RemoteRelease = 2 // the message of that number is not used any more

	FifoShift = 48 // of a number: its generation is above
)
