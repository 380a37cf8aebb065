package ep

import (
	"encoding/binary"
	"fmt"

	"github.com/moewire/moewire/core/group/membership"
)

// Standing is what a rank brings to the rendezvous that begins an epoch.
type Standing struct {
	Epoch membership.Epoch // the last one that the group has begun, as seen here
	Next  uint64           // no operation from this one on was ever opened here
}

// maxNext bounds Standing.Next: a handle has 44 bits for the number of its
// operation, and an epoch has to have some left.
const maxNext = 1 << 43

// StandingBytes is the length of an encoded Standing.
const StandingBytes = 16

// Append encodes st for the parameters of a rendezvous.
func (st Standing) Append(out []byte) []byte {
	out = binary.LittleEndian.AppendUint64(out, uint64(st.Epoch))
	return binary.LittleEndian.AppendUint64(out, st.Next)
}

// include makes st cover the Standing that a rank gives in its parameters. If no buffer
// can have reached it: ErrMismatch, which names the rank.
func (st *Standing) include(rank int, given []byte) error {
	epoch, next := binary.LittleEndian.Uint64(given), binary.LittleEndian.Uint64(given[8:])
	switch {
	case epoch > membership.MaxEpoch:
		return fmt.Errorf("%w: rank %d says that it is in epoch %d, allowed 0 to %d", ErrMismatch, rank, epoch, membership.MaxEpoch)
	case next >= maxNext:
		return fmt.Errorf("%w: rank %d says that its next operation is %d, allowed below 2^43", ErrMismatch, rank, next)
	}
	st.Epoch, st.Next = max(st.Epoch, membership.Epoch(epoch)), max(st.Next, next)
	return nil
}

// MayInstall says why a rank that joined epoch `own` cannot begin the next one.
func MayInstall(l *membership.Life, own, next membership.Epoch) error {
	switch l.State() {
	case membership.Updating:
		return nil
	case membership.Member, membership.Connecting:
		return Invalid("epoch %d cannot begin: this rank is in epoch %d; prepare first", next, own)
	case membership.Closed:
		return l.Why()
	}
	return fmt.Errorf("epoch %d cannot begin: prepare first: %w", next, l.Why())
}
