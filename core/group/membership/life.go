package membership

import (
	"fmt"
	"slices"
)

// State is where a rank is in its life in a group. Calls are possible for a Member only.
type State uint8

const (
	Connecting State = iota // made; the memory of the other ranks is not known yet
	Member                  // of its epoch
	Fenced                  // out of its epoch: another rank took it out, or it did so itself
	Failed                  // out of its epoch, because of a defect or a failure of its device
	Updating                // between two epochs: Prepare has run, Install has not
	Closed                  // for good
	numStates
)

var stateNames = [numStates]string{"connecting", "member", "fenced", "failed", "updating", "closed"}

// String is the state's name.
func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// following are the states that may follow each one. A rank that is out comes back by an
// update; nothing follows Closed.
var following = [numStates][]State{
	Connecting: {Member, Fenced, Failed, Closed},
	Member:     {Fenced, Failed, Updating, Closed},
	Fenced:     {Fenced, Failed, Updating, Closed},
	Failed:     {Fenced, Failed, Updating, Closed},
	Updating:   {Member, Fenced, Failed, Updating, Closed},
}

// Life is a rank's state, and the reason why no calls are possible. The caller holds the
// lock that guards it. The zero value is Connecting without a reason.
type Life struct {
	state State
	why   error
}

// Begin is the life of a rank that is out at first, for a reason.
func Begin(s State, why error) Life { return Life{s, why} }

// State returns the present state.
func (l *Life) State() State { return l.state }

// IsMember reports whether this rank has not noticed that it is out.
func (l *Life) IsMember() bool { return l.state == Member }

// Why is what calls get; nil for a Member.
func (l *Life) Why() error { return l.why }

// Join makes the rank a Member.
func (l *Life) Join() bool { return l.move(Member, nil) }

// Leave ends the rank's part in its epoch, or gives a rank that is out another reason.
func (l *Life) Leave(s State, why error) bool { return s != Member && l.move(s, why) }

// move reports whether the state could follow the present one. If it could not, nothing
// has changed.
func (l *Life) move(s State, why error) bool {
	if !slices.Contains(following[l.state], s) {
		return false
	}
	l.state, l.why = s, why
	return true
}
