package cpu

import (
	"encoding/binary"

	"github.com/moewire/moewire/core/device"
)

// pieceJobs checks all of a piece before any of it counts, and makes its jobs.
// The last piece must bring every row that was announced.
func (b *Buffer) pieceJobs(in *inRows, h *rowsHead, msg []byte) (x sections, ok bool) {
	x = sectionsOf(&in.lay, in.params.preReduce, h.first == 0, int64(h.rows), int64(h.entries))
	if x.size != int64(len(msg)) {
		return x, false
	}
	b.remote.copyLists(msg, &x)
	if !b.rowJobs(in, b.remote.lists, &x, int(h.rows)) {
		return x, false
	}
	if h.first+h.rows == h.total {
		for l, n := range in.counts {
			if b.remote.cursor[l] != n {
				return x, false
			}
		}
	}
	return x, true
}

// copyHead copies a message's head: what is checked is what is used, even if another
// process writes to the message meanwhile.
func (f *remote) copyHead(msg []byte) []byte {
	f.lists = append(f.lists[:0], msg[:min(len(msg), rowsHeadBytes)]...)
	return f.lists
}

// copyLists copies what lies before scales and rows, behind the head that was copied.
func (f *remote) copyLists(msg []byte, x *sections) {
	f.lists = append(f.lists[:rowsHeadBytes], msg[rowsHeadBytes:x.scales.Off]...)
}

// rowJobs turns a piece's lists into jobs: a row's place within an expert's is
// its number among them. False: the lists contradict the counts.
func (b *Buffer) rowJobs(in *inRows, msg []byte, x *sections, rows int) bool {
	jobs, cursor := b.remote.jobs[:0], append(b.remote.cursor[:0], in.cursor...)
	lens, entries, last := part(msg, x.lens), part(msg, x.entries), in.last
	flat := [2]byte{} // the only expert
	ok := true
	for i := range rows {
		token := int32(binary.LittleEndian.Uint32(msg[x.tokens.Off+int64(4*i):]))
		one := flat[:]
		if !in.lay.Flat {
			n := 2 * int(lens[i])
			if n == 0 || n > len(entries) || n > 2*int(in.params.topK) {
				ok = false
				break
			}
			one, entries = entries[:n], entries[n:]
		}
		if token <= last || uint64(token) >= in.params.tokens {
			ok = false
			break
		}
		last = token
		if jobs, ok = appendRowJobs(jobs, cursor, in, one, i); !ok {
			break
		}
	}
	b.remote.jobs, b.remote.cursor = jobs, cursor
	if !ok || (!in.lay.Flat && len(entries) > 0) {
		return false
	}
	b.remote.last = last
	return true
}

// appendRowJobs adds the jobs of one row. Its experts differ, but for a pre-reduced
// one: there each selection is an entry.
func appendRowJobs(jobs []device.PlaceJob, cursor []int32, in *inRows, experts []byte, row int) ([]device.PlaceJob, bool) {
	first := len(jobs)
	for at := 0; at < len(experts); at += 2 {
		e := int32(binary.LittleEndian.Uint16(experts[at:]))
		if in.params.preReduce && isAmong(jobs[first:], e) {
			continue
		}
		if int(e) >= len(cursor) || cursor[e] >= in.counts[e] || isAmong(jobs[first:], e) {
			return jobs, false
		}
		jobs = append(jobs, device.PlaceJob{Token: int32(row), Expert: e, Pos: cursor[e]})
		cursor[e]++
	}
	return jobs, true
}

func isAmong(jobs []device.PlaceJob, expert int32) bool {
	for i := range jobs {
		if jobs[i].Expert == expert {
			return true
		}
	}
	return false
}
