package cuda

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/internal/libcuda"
)

// Staging is memory for calls that the host leads step by step: tables that the host writes and
// kernels read, results that come back, and rows. One goroutine at a time. Nothing of it may be in
// use on the device when it is closed.
type Staging struct {
	d      *Device
	calls  *libcuda.Caller
	host   *HostMemory // tables and results, as the host has them
	copies *Memory     // tables, as kernels have them: at the same offsets
	rows   *Memory
	used   int
	done   libcuda.Event
	marked bool
}

// NewStaging allocates memory on the device and beside it: tableBytes on each side, and rowBytes
// on the device.
func (d *Device) NewStaging(tableBytes, rowBytes int) (s *Staging, err error) {
	s = &Staging{d: d, calls: d.lib.NewCaller()}
	if s.host, err = d.AllocHost(uint64(tableBytes)); err == nil {
		s.copies, err = d.Alloc(uint64(tableBytes))
	}
	if err == nil {
		s.rows, err = d.Alloc(uint64(rowBytes))
	}
	if err == nil {
		err = d.do(func() (err error) { s.done, err = d.lib.EventCreate(libcuda.EventDisableTiming); return err })
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Rows is where its memory for rows begins.
func (s *Staging) Rows() uint64 { return s.rows.Address() }

// take reserves room in both memories.
func (s *Staging) take(n int) (off int, err error) {
	off = (s.used + 15) &^ 15
	if off+n > len(s.host.Bytes()) {
		return 0, fmt.Errorf("tables of %d bytes, and %d are taken of %d", n, off, len(s.host.Bytes()))
	}
	s.used = off + n
	return off, nil
}

// Put copies a table to the device, behind what the stream has. It stays until Reset.
func (s *Staging) Put(table []byte, stream uint64) (address uint64, err error) {
	off, err := s.take(len(table))
	if err != nil {
		return 0, err
	}
	copy(s.host.Bytes()[off:], table)
	address = s.copies.Address() + uint64(off)
	if len(table) == 0 {
		return address, nil
	}
	return address, s.d.do(func() error {
		from := s.host.host + uintptr(off)
		return s.d.lib.CopyToDeviceAsync(libcuda.DevicePtr(address), from, uint64(len(table)), libcuda.Stream(stream))
	})
}

// Fetch copies n bytes from the device, behind what the stream has. They are there once Done says
// so of a later Mark, until Reset.
func (s *Staging) Fetch(from uint64, n int, stream uint64) ([]byte, error) {
	off, err := s.take(n)
	if err != nil || n == 0 {
		return nil, err
	}
	err = s.d.do(func() error {
		to := s.host.host + uintptr(off)
		return s.d.lib.CopyToHostAsync(to, libcuda.DevicePtr(from), uint64(n), libcuda.Stream(stream))
	})
	return s.host.Bytes()[off : off+n], err
}

// Clear zeroes memory of the device, behind what the stream has.
func (s *Staging) Clear(at uint64, n int, stream uint64) error {
	if n == 0 {
		return nil
	}
	return s.d.do(func() error { return s.d.lib.MemsetAsync(libcuda.DevicePtr(at), 0, uint64(n), libcuda.Stream(stream)) })
}

// Mark says that what the stream has now is what Done asks for.
func (s *Staging) Mark(stream uint64) error {
	err := s.d.do(func() error { return s.calls.Record(s.done, libcuda.Stream(stream)) })
	s.marked = s.marked || err == nil
	return err
}

// Done reports whether the device has done what was marked last.
func (s *Staging) Done() (bool, error) {
	if !s.marked {
		return true, nil
	}
	err := s.d.do(func() error { return s.d.lib.EventQuery(s.done) })
	if errors.Is(err, libcuda.ErrNotReady) {
		return false, nil
	}
	return err == nil, err
}

// Reset gives all tables and results back. The device is done with them.
func (s *Staging) Reset() { s.used = 0 }

// Close frees everything. Idempotent.
func (s *Staging) Close() error {
	var all []error
	if s.host != nil {
		all = append(all, s.host.Close())
	}
	for _, m := range []*Memory{s.copies, s.rows} {
		if m != nil {
			all = append(all, m.Close())
		}
	}
	if s.done != 0 {
		all = append(all, s.d.do(func() error { done := s.done; s.done = 0; return s.d.lib.EventDestroy(done) }))
	}
	return errors.Join(all...)
}
