package pool

// Trim destroys free values until at most n are free, and returns how many.
func (p *Pool[T]) Trim(n int) (trimmed int) {
	for {
		p.mu.Lock()
		if len(p.free) <= max(n, 0) {
			p.mu.Unlock()
			return trimmed
		}
		i := p.free[0] // the coldest
		p.free = p.free[:copy(p.free, p.free[1:])]
		p.entries[i].state = moving
		p.mu.Unlock()
		p.destroy(i)
		trimmed++
	}
}

// destroy ends a value that is moving, and only then releases its place, also
// when Destroy panics.
func (p *Pool[T]) destroy(i uint32) {
	p.mu.Lock()
	v := p.entries[i].value
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stats.Destroyed++
		p.vacate(i)
	}()
	if p.cfg.Destroy != nil {
		p.cfg.Destroy(v)
	}
}

// Close destroys what is free or released and ends all waits with ErrClosed.
// What is leased is destroyed when it comes back. Idempotent.
func (p *Pool[T]) Close() {
	p.mu.Lock()
	p.closed = true
	for len(p.waiters) > 0 {
		close(p.shift().lease)
	}
	p.mu.Unlock()
	p.Trim(0)
	for {
		p.mu.Lock()
		i, ok := p.queue.pop()
		if ok {
			p.stats.Queued--
			p.entries[i].state = moving
		}
		p.mu.Unlock()
		if !ok {
			return
		}
		p.destroy(i)
	}
}
