package server

import (
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/store/message"
)

// flush flushes in a goroutine of its own, so that other requests go on.
func (c *conn) flush(j *job) error {
	if err := c.in.End(); err != nil {
		return err
	}
	within := c.server.cfg.Total
	if us := j.said.DeadlineUs; us > 0 {
		within = min(within, time.Duration(us)*time.Microsecond)
	}
	deadline := time.Now().Add(within)
	c.current = nil
	c.others.Add(1)
	safego.Go("store: flush", func() {
		defer c.others.Done()
		j.status = c.flushed(j, deadline)
		c.waiting.Add(1)
		c.replies <- reply{job: j}
	}, c.report)
	return nil
}

// flushed waits for the store, unless the server is closed: a disk may take as long as the deadline.
func (c *conn) flushed(j *job, deadline time.Time) message.Status {
	done := make(chan error, 1)
	safego.Go("store: flush of the engine", func() {
		var err error
		if panicked := safego.Call("store: flush", func() { err = c.server.cfg.Store.Flush(deadline) }); panicked != nil {
			err = panicked
		}
		done <- err
	}, nil)
	select {
	case <-c.server.cut:
		return message.Closing
	case err := <-done:
		switch {
		case err == nil:
			return message.OK
		case !time.Now().Before(deadline):
			return message.Late
		}
		return j.refusal(err)
	}
}
