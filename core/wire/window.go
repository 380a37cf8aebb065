package wire

// WindowNum is how many sequence numbers back a message may still come when
// the session is not ordered.
const WindowNum = 1024

// window knows which sequence numbers were received. Its size does not depend
// on how many there were.
type window struct {
	highest uint64
	seen    [WindowNum / 64]uint64 // bit seq % WindowNum; only of the last WindowNum
}

// check says whether a number is new, and ErrReplay if it may have been seen.
// Numbers begin at 1.
func (w *window) check(seq uint64) error {
	if seq == 0 {
		return ErrReplay
	}
	if seq > w.highest {
		return nil
	}
	if w.highest-seq >= WindowNum {
		return ErrReplay
	}
	if w.seen[seq%WindowNum/64]>>(seq%64)&1 == 1 {
		return ErrReplay
	}
	return nil
}

// mark notes a number that check has accepted.
func (w *window) mark(seq uint64) {
	if seq > w.highest {
		w.forget(seq)
		w.highest = seq
	}
	w.seen[seq%WindowNum/64] |= 1 << (seq % 64)
}

// forget clears the bits of numbers between highest and seq, which have stood
// for numbers that are too old now.
func (w *window) forget(seq uint64) {
	if seq-w.highest >= WindowNum {
		clear(w.seen[:])
		return
	}
	for n := w.highest; n < seq; {
		n++ // here, because seq may be the greatest number there is
		w.seen[n%WindowNum/64] &^= 1 << (n % 64)
	}
}
