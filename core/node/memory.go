package node

import "sync"

// deviceMemory counts the users of the memory of a buffer on CUDA.
type deviceMemory struct {
	mu   sync.Mutex
	n    int
	free func() error // set once the buffer is closed
}

// Retain keeps the memory in place until Release.
func (m *deviceMemory) Retain() {
	m.mu.Lock()
	m.n++
	m.mu.Unlock()
}

// Release is TryRelease for callers that cannot handle an error.
func (m *deviceMemory) Release() { _ = m.TryRelease() }

// TryRelease undoes one Retain; the last one frees the memory of a closed buffer. After
// an error the memory is retained as before. Only one call may run at a time.
func (m *deviceMemory) TryRelease() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n == 1 && m.free != nil {
		if err := m.free(); err != nil {
			return err
		}
	}
	m.n--
	return nil
}

// close marks the buffer as closed. It returns whether the memory is still in use, so
// that the last Release frees it.
func (m *deviceMemory) close(free func() error) (later bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n > 0 {
		m.free = free
	}
	return m.n > 0
}
