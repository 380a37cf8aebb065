package remote

// Bounds of the arrays of a State. Configurations stay within them.
const (
	maxRanks    = 3
	maxSlots    = 2
	maxCapacity = 3
	maxDeferred = 3
	maxChain    = 4
	numRows     = 2 // of a source for one owner, each in a message of its own
	maxEpochs   = 2
)

// State is everything that can differ between two moments: what each rank has
// in its own memory, and the messages that are under way. Operation numbers are
// stored plus one.
type State struct {
	// chain has the agreed sets of each epoch, one after the other.
	chain  [maxEpochs][maxChain]uint8
	agreed [maxEpochs]uint8 // the index of the latest
	left   uint8            // ranks that have left by themselves
	base   uint8            // first operation of epoch 1
	met    uint8            // 1: its ranks have met

	fences, deaths, cuts uint8
	broken               uint8 // a property that does not hold
	proc                 [maxRanks]Proc
	mail                 [maxRanks][maxRanks]Mail // from, to
}

// Mail is what one rank has sent to another one, in order.
type Mail struct {
	cut uint8 // 1: nothing more comes in
	n   uint8
	msg [maxCapacity]Message
}

// Kinds of messages.
const (
	words = iota + 1
	rows
	outputs
)

// Message is one of the three kinds. A piece has one row.
type Message struct {
	kind, epoch, slot uint8
	op                uint8 // of rows and outputs
	total, first      uint8
	row               uint8 // content
	open              uint8
	y, done           Word
	out               Word // content of a row of y
}

// Word is an operation number plus one, and how many combines << 1 | last.
type Word struct{ op, detail uint8 }

func word(op, combines uint8, last bool) Word {
	w := Word{op, combines << 1}
	if last {
		w.detail |= 1
	}
	return w
}

func (w Word) isLast() bool    { return w.detail&1 == 1 }
func (w Word) combines() uint8 { return w.detail >> 1 }
func (w Word) above(o Word) bool {
	return w.op > o.op || w.op == o.op && w.detail > o.detail
}

// Proc is one rank.
type Proc struct {
	dead     uint8
	epoch    uint8
	seen     uint8 // which set of the chain its page shows
	pc       uint8
	call     uint8
	work     uint8 // slot of the present call
	next     uint8 // operations begun, plus the base
	quiesced uint8
	observed [maxRanks]uint8 // the others' quiesced, as told
	deferred [maxDeferred]Deferred
	slot     [maxSlots]Slot
}

// Deferred is one entry of the list of operations that owners still have to be told
// of.
type Deferred struct{ op, owners, withY uint8 }

// Slot is a slot, with core/ep/cpu's names.
type Slot struct {
	// As owner.
	served, a, open uint8
	yReady, y       Word // y: what the outputs are of
	shown           uint8
	counter         uint8
	arrive          [maxRanks]uint8
	done            [maxRanks]Word
	layout          [maxRanks]uint8 // first row plus one; as many as in.total
	rows            [maxRanks * numRows]uint8
	in              [maxRanks]In
	outs            [maxRanks]Outs
	lastSent        [maxRanks]Sent

	// What the others have told.
	peerOpen [maxRanks]uint8
	peerY    [maxRanks]Word

	// As source.
	op, live                       uint8
	dispatching, combining         uint8
	sent, unsent, awaited, counted uint8
	combines, published, need      uint8
	total, row                     [maxRanks]uint8 // rows for an owner, and those that were sent
	shadowDone                     [maxRanks]Word
	shadow                         [maxRanks][numRows]Word
	back                           [maxRanks]Outs
}

// In is how far a source's rows have got, Outs how far outputs have.
type In struct{ op, total, next, begin, placed uint8 }

// Outs is one combine's outputs between two ranks.
type Outs struct {
	word      Word
	row, done uint8
}

// Sent is what was sent last to a rank of a slot.
type Sent struct {
	open    uint8
	y, done Word
}

func bit(r int) uint8 { return 1 << r }

func has(set uint8, r int) bool { return set>>r&1 == 1 }

// content is row number i of rank p's for an operation of its epoch.
func (q *Proc) content(p int, op, i uint8) uint8 { return q.epoch<<7 | op<<3 | uint8(p)<<1 | i }

// members is what a rank's page shows; it is empty where the group has gone on.
func (s *State) members(p int) uint8 {
	q := &s.proc[p]
	return s.chain[q.epoch][q.seen]
}

func (s *State) member(p int) bool { return has(s.members(p), p) }

func (l *Slot) isOpen() bool { return l.served == l.op }
