package proxy

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/device/cuda/fifo"
	"github.com/moewire/moewire/core/group/rankset"
)

// Reasons of fifo.Queue.End: the device reports them with its failure.
const (
	ReasonStopped = 1 // Stop was called
	ReasonBroken  = 2 // a descriptor that cannot be
	ReasonDefect  = 3 // the goroutine has failed
	ReasonFlush   = 4 // Config.Flush has failed
)

// Where the words of one rank's mail are, each of 64 bits: those of mw_mail.
const (
	mailLease      = 0
	mailLeaseAt    = 1
	mailLeaseBytes = 2
	mailCame       = 3
	mailCameAt     = 4
	mailCameBytes  = 5
	mailFull       = 6
	mailWords      = 8
)

// rankShift is where the rank is in a descriptor's first word, above its kind.
const rankShift = 8

// MailWords is how many words the mail of so many ranks takes.
func MailWords(ranks int) int { return mailWords * ranks }

// Config says what a proxy works with. The memory stays the caller's, and is
// there until Stop has returned and the device is idle.
type Config struct {
	NumRanks int
	// Queue is where the device's descriptors come from; the proxy alone takes them.
	Queue *fifo.Queue
	// Mail is memory that the device sees: MailWords(NumRanks) words.
	Mail []uint64
	// LeaseBytes is how much room the device gets for one message.
	LeaseBytes int64
	// Flush, if not nil, makes what the carrier has written visible to the
	// device. It is called before a message is shown.
	Flush func() error
	// Spins and Nap: see the package's comment. Zeros: 200, 1 ms.
	Spins int
	Nap   time.Duration
}

const (
	defaultSpins = 200
	defaultNap   = time.Millisecond
	firstNap     = 20 * time.Microsecond
)

func (c *Config) check() error {
	switch {
	case c.NumRanks < 1 || c.NumRanks > rankset.MaxRanks:
		return fmt.Errorf("proxy: NumRanks is %d, 1 to %d are possible", c.NumRanks, rankset.MaxRanks)
	case c.Queue == nil:
		return errors.New("proxy: Queue is nil")
	case len(c.Mail) < MailWords(c.NumRanks):
		return fmt.Errorf("proxy: Mail has %d words, %d are needed for %d ranks", len(c.Mail), MailWords(c.NumRanks), c.NumRanks)
	case c.LeaseBytes < 1:
		return fmt.Errorf("proxy: LeaseBytes is %d, must be positive", c.LeaseBytes)
	case c.Spins < 0 || c.Nap < 0 || c.Nap > time.Second:
		return fmt.Errorf("proxy: Spins is %d and Nap %v, from 0, and at most a second, are possible", c.Spins, c.Nap)
	}
	if c.Spins == 0 {
		c.Spins = defaultSpins
	}
	if c.Nap == 0 {
		c.Nap = defaultNap
	}
	return nil
}
