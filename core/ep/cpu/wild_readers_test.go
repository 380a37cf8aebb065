package cpu_test

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// readBeside reads the telemetry of all ranks at every rank until stop is closed, as stats and
// traces do beside calls. Its result is the first answer that no reader may get.
func (w *wildWorld) readBeside(stop <-chan struct{}) <-chan error {
	ended := make(chan error, 1)
	go func() {
		var err error
		for rank := 0; err == nil; rank = (rank + 1) % len(w.bufs) {
			select {
			case <-stop:
				ended <- nil
				return
			case <-time.After(200 * time.Microsecond):
				err = readAll(w.bufs[rank], rank, len(w.bufs))
			}
		}
		ended <- err
	}()
	return ended
}

// readAll reads what a rank has of itself and of all others. Whatever the words hold, lists are
// as long as the group, and records can have been.
func readAll(b *cpu.Buffer, rank, ranks int) error {
	s, err := b.Stats()
	if err != nil {
		return fmt.Errorf("stats of rank %d: %w", rank, err)
	}
	for _, list := range [][]uint64{s.RowsTo, s.RowsFrom, s.Dispatch.WaitFor, s.Dispatch.Last, s.Combine.WaitFor, s.Combine.Last} {
		if len(list) != ranks {
			return fmt.Errorf("stats of rank %d: a list of %d ranks", rank, len(list))
		}
	}
	if s.Rank != rank || s.NumRanks != ranks || len(s.Experts) > telemetry.MaxExperts {
		return fmt.Errorf("stats of rank %d: rank %d of %d, %d experts", rank, s.Rank, s.NumRanks, len(s.Experts))
	}
	if _, err := json.Marshal(s); err != nil {
		return fmt.Errorf("stats of rank %d: %w", rank, err)
	}
	for of := range ranks {
		if err := readRecords(b, of); err != nil {
			return fmt.Errorf("rank %d reads records of rank %d: %w", rank, of, err)
		}
	}
	return nil
}

func readRecords(b *cpu.Buffer, of int) error {
	records, err := b.Records(of, 0)
	if err != nil {
		return err
	}
	if len(records) > telemetry.Capacity {
		return fmt.Errorf("%d records", len(records))
	}
	for i := range records {
		r := &records[i]
		known := r.Kind == telemetry.Dispatch || r.Kind == telemetry.Combine
		if !known || r.Outcome > telemetry.Cancelled || r.Start < 0 || r.End < 0 || int(r.Last) >= rankset.MaxRanks {
			return fmt.Errorf("a record that no rank has stored: %+v", r)
		}
	}
	return nil
}
