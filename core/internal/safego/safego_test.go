package safego

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/moewire/moewire/core/origin"
)

func receive(t *testing.T, c <-chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(5 * time.Second):
		t.Fatal("the goroutine reported nothing")
		return nil
	}
}

func TestGoReportsPanic(t *testing.T) {
	c := make(chan error, 1)
	Go("reader", func() { panic(io.ErrUnexpectedEOF) }, func(err error) { c <- err })
	err := receive(t, c)
	var p *PanicError
	if !errors.As(err, &p) || !strings.Contains(origin.Of(err), "TestGoReportsPanic") || p.Name != "reader" {
		t.Fatalf("got %#v", err)
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), `"reader"`) {
		t.Fatalf("error does not carry its cause: %v", err)
	}
}

func TestGoSurvivesPanicInHandler(t *testing.T) {
	c := make(chan error, 1)
	Go("a", func() { panic(1) }, func(err error) { c <- err; panic(2) })
	receive(t, c)
	Go("b", func() { panic(1) }, nil)
	Go("c", func() { c <- nil }, func(err error) { c <- err })
	if err := receive(t, c); err != nil {
		t.Fatalf("a goroutine that did not panic reported %v", err)
	}
}
