package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/rankset"
)

// TestMain runs a rank instead of the tests when the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv("CHAOS_RANK") != "" {
		newRank().serve()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// rank is one child process.
type rank struct {
	num, ranks int
	place      place
	seed       uint64
	timeout    time.Duration
	fill       bool // DebugFill
	trap       *trap
	out        *mouth
	own        *rand.Rand // what peers need not know
	commands   chan command
	resident   []byte
	before     usage

	ep         atomic.Pointer[cpu.Buffer] // nil before the first rendezvous
	dom        *tappedDomain
	listener   *multihost.Listener
	change     *multihost.Change
	next       ep.Standing
	joining    bool
	installed  bool // it has been a member
	playing    bool
	term       uint64
	steps      uint64
	reported   rankset.Set // members, as the parent knows
	reportedAt time.Time
	changedAt  time.Time // when a call returned that found others
}

// env reads one of the numbers that a rank is started with.
func env(name string) int64 {
	n, err := strconv.ParseInt(os.Getenv(name), 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func newRank() *rank {
	r := &rank{
		num: int(env("CHAOS_RANK")), ranks: int(env("CHAOS_RANKS")), place: place(env("CHAOS_PLACE")), seed: uint64(env("CHAOS_SEED")),
		timeout: time.Duration(env("CHAOS_TIMEOUT")), out: &mouth{enc: json.NewEncoder(os.Stdout)},
		own: rand.New(rand.NewPCG(rand.Uint64(), 0)), commands: make(chan command, 64),
	}
	r.fill = r.own.IntN(2) == 0
	r.trap = newTrap(r.out.say)
	r.resident = make([]byte, env("CHAOS_RESIDENT"))
	for i := 0; i < len(r.resident); i += os.Getpagesize() {
		r.resident[i] = 1
	}
	return r
}

func (r *rank) buffer() *cpu.Buffer { return r.ep.Load() }

func (r *rank) members() rankset.Set {
	r.trap.tick() // so that checking what came counts as being late, too
	ranks := r.buffer().Members()
	if ranks != r.reported && r.changedAt.IsZero() {
		r.changedAt = time.Now()
	}
	return ranks
}

// say adds how things stand to an event.
func (r *rank) say(what string, e event) {
	e.What, e.Gap, e.Steps, e.At = what, r.trap.worst(), r.steps, r.changedAt.UnixNano()
	r.out.say(e)
}

// wrong ends the process: something is not as it must be.
func (r *rank) wrong(err error) {
	r.say("wrong", event{Text: fmt.Sprintf("term %d, step %d: %v", r.term, r.steps, err)})
	os.Exit(1)
}

// listen reads commands. Those that must not wait for a call run at once.
func (r *rank) listen() {
	decode(os.Stdin, func(c command) {
		switch c.What {
		case "arm":
			r.trap.arm(c.Fault)
		case "disarm":
			if r.trap.disarm() { // else it has fired, and says so
				r.say("disarmed", event{})
			}
		default:
			if c.What == "prepare" && c.Now && r.buffer() != nil {
				_, _ = r.buffer().Prepare()
			}
			r.commands <- c
		}
	})
	os.Exit(3) // the parent is gone
}

func (r *rank) serve() {
	measure() // opens what the Go runtime keeps open
	r.before = measure()
	go r.listen()
	r.say("hello", event{})
	for c := (command{}); c.What != "close"; {
		if c = r.heard(); c.What != "" {
			r.obey(c)
		} else {
			r.step()
		}
	}
}

// holdFor is how long a forked child keeps the sockets of its rank.
const holdFor = 2 * time.Second

// fork makes a child now and then that holds what a DataLoader's worker would. The parent knows
// before: the rank may be killed as soon as the child is there.
func (r *rank) fork() {
	if !canHold || r.own.IntN(3) != 0 {
		return
	}
	r.say("forked", event{})
	if err := holdSockets(); err != nil {
		r.wrong(err)
	}
}

// heard returns the next command; the zero one when there is none and a script
// to be played.
func (r *rank) heard() command {
	if !r.playing {
		return <-r.commands
	}
	select {
	case c := <-r.commands:
		return c
	default:
		return command{}
	}
}

// step plays one step and tells the parent what has changed.
func (r *rank) step() {
	r.trap.hit(atBetween)
	err := r.play(stepOf(r.seed, r.term, r.steps, r.ranks))
	r.steps++
	switch {
	case errors.Is(err, ep.ErrFenced):
		r.playing = false
		r.say("fenced", event{Seq: int(r.term)})
		return
	case errors.Is(err, ep.ErrUpdating):
		r.playing = false // the command to prepare is on its way
		return
	case err != nil:
		r.wrong(err)
	}
	if set := r.members(); set != r.reported || time.Since(r.reportedAt) > 3*time.Millisecond {
		r.reported, r.reportedAt = set, time.Now()
		r.say("step", event{Set: set.Word(), Seq: int(r.term)})
		r.changedAt = time.Time{}
	}
}

// obey runs a command between two steps.
func (r *rank) obey(c command) {
	var err error
	switch c.What {
	case "prepare":
		err = r.prepare(c.Seq)
	case "connect":
		r.connect(c)
	case "install":
		err = r.install(c)
	case "close":
		err = r.close()
	}
	if err != nil {
		r.wrong(fmt.Errorf("%s: %w", c.What, err))
	}
}
