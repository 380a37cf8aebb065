package transporttest

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
)

const (
	shortDeadline = 400 * time.Millisecond
	// A quiet machine needs less than 100 ms; this one may be busy.
	mayBeLate = time.Second
)

// ConnectWithoutDescriptors is a test of two transports that reach one another. When no
// connection can be taken, both sides end by their deadline, no processor is burnt, and a
// side that could not take it says why. With descriptors again, the same transports
// connect. failAccept makes every accept of this process fail with EMFILE until stop.
func ConnectWithoutDescriptors(t *testing.T, a, b transport.Transport, failAccept func() (stop func())) {
	stop := failAccept()
	defer stop()
	begin, before := time.Now(), testenv.BusyTime()
	err := connectOnce(t, a, b, shortDeadline)
	took, busy := time.Since(begin), testenv.BusyTime()-before
	if took > shortDeadline+mayBeLate || busy > shortDeadline/2 {
		t.Errorf("took %v of %v, busy for %v", took, shortDeadline, busy)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "accept4: too many open files, limit ") {
		t.Errorf("without descriptors: %v", err)
	}
	stop()
	if err := connectOnce(t, a, b, 20*time.Second); err != nil {
		t.Errorf("with descriptors again: %v", err)
	}
}

// connectOnce makes two endpoints, connects them, and closes them again.
func connectOnce(t *testing.T, a, b transport.Transport, within time.Duration) error {
	var ends [2]transport.Endpoint
	for i, tr := range []transport.Transport{a, b} {
		var err error
		if ends[i], err = tr.NewEndpoint(transport.EndpointSpec{SendDepth: 8, RecvDepth: 8}); err != nil {
			t.Fatal(err)
		}
	}
	errs, until := make(chan error, 2), time.Now().Add(within)
	local := [2][]byte{ends[0].Local(), ends[1].Local()}
	for i := range ends {
		go func() { errs <- ends[i].Connect(local[1-i], until) }()
	}
	connected := errors.Join(<-errs, <-errs)
	for _, end := range ends {
		if err := errors.Join(end.Retire(), end.Close()); err != nil {
			t.Error(err)
		}
	}
	return connected
}
