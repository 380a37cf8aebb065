package store

import "sync"

// deletes are those that run: of a block that the index has no more; its record may still be on the disk. A flush waits
// for those that began before it, or another client would be told that the block is gone for good.
type deletes struct {
	mu      sync.Mutex
	running *sync.WaitGroup // those that began since the latest flush
}

// begin adds a delete; the caller calls what is returned once its records are none.
func (d *deletes) begin() (end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running == nil {
		d.running = &sync.WaitGroup{}
	}
	d.running.Add(1)
	return d.running.Done
}

// wait returns once the deletes that run have ended. For one goroutine at a time.
func (d *deletes) wait() {
	d.mu.Lock()
	running := d.running
	d.running = nil
	d.mu.Unlock()
	if running != nil {
		running.Wait()
	}
}
