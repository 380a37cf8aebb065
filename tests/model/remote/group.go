package remote

// The agreement of all ranks on a set is one step here: the tests of
// core/group/multihost play how they agree. Each rank learns of the set later, when
// its page shows it.

func (s *State) set(epoch uint8) uint8 { return s.chain[epoch][s.agreed[epoch]] }

// agree makes the next set of an epoch.
func (s *State) agree(epoch, set uint8) {
	s.agreed[epoch]++
	s.chain[epoch][s.agreed[epoch]] = set
}

// learn: the rank's page shows the next set.
func (v *mover) learn() {
	v.try(stepLearn, -1, func(s *State, q *Proc) bool {
		if q.seen == s.agreed[q.epoch] {
			return false
		}
		gone := s.members(v.p)
		q.seen++
		gone &^= s.members(v.p)
		for t := range v.Ranks {
			if has(gone&s.left, t) && s.proc[t].dead == 0 && q.observed[t] <= q.epoch {
				s.violate(takenForLost)
			}
		}
		return true
	})
}

// fence takes out a rank that is waited for: because it is known to be dead, or
// cannot be reached, or for a deadline. The word has to be the one that was seen.
func (v *mover) fence(s *State, q *Proc, t int) bool {
	set := s.set(q.epoch)
	exact := q.seen == s.agreed[q.epoch] || v.Mutation == fencesFromOldSet
	if !exact || !has(s.members(v.p), t) || !has(set, t) || !has(v.waitsFor(s, q), t) {
		return false
	}
	if s.proc[t].dead == 0 && s.mail[v.p][t].cut == 0 {
		if s.fences++; int(s.fences) > v.Suspicions {
			return false
		}
	}
	if s.agree(q.epoch, set&^bit(t)); s.set(q.epoch) == 0 {
		s.violate(emptySet)
	}
	if v.Mutation != fencesFromOldSet {
		q.seen++
	}
	return true
}

// waitsFor is what stepDispatch and stepCombine return.
func (v *mover) waitsFor(s *State, q *Proc) (ranks uint8) {
	l := &q.slot[q.work]
	switch {
	case l.dispatching == 1 && !l.isOpen():
		ranks = v.unfinished(l) | l.unsent
	case l.dispatching == 1:
		ranks = l.unsent | l.awaited
	case l.published == 0:
		ranks = v.readers(l)
	default:
		missing, _ := v.missing(l)
		at := *s
		_, unsent := v.unsentOutputs(&at, &at.proc[v.p])
		ranks = missing | unsent
	}
	return ranks &^ bit(v.p)
}

// die: a rank stops forever; of what it has sent the rest may be lost.
func (v *mover) die() {
	if int(v.from.deaths) == v.Deaths || !has(v.Targets, v.p) {
		return
	}
	for keep := uint8(0); ; keep++ {
		longest := uint8(0)
		v.try(stepDie, int(keep), func(s *State, q *Proc) bool {
			s.deaths++
			for t := range v.Ranks {
				longest = max(longest, s.mail[v.p][t].n)
				s.mail[v.p][t].end(keep)
				s.mail[t][v.p].end(0)
			}
			*q = Proc{dead: 1, epoch: q.epoch, quiesced: q.quiesced}
			return true
		})
		if keep >= longest {
			return
		}
	}
}

// end cuts a link: only the first messages still arrive.
func (m *Mail) end(keep uint8) {
	for ; m.n > keep; m.n-- {
		m.msg[m.n-1] = Message{}
	}
	m.cut = 1
}

// cut: the link between two live ranks fails.
func (v *mover) cut() {
	if int(v.from.cuts) == v.Cuts {
		return
	}
	for t := v.p + 1; t < v.Ranks; t++ {
		for a := range v.from.mail[v.p][t].n + 1 {
			for b := range v.from.mail[t][v.p].n + 1 {
				v.try(stepCut, t, func(s *State, q *Proc) bool {
					if s.mail[v.p][t].cut == 1 {
						return false
					}
					s.cuts++
					s.mail[v.p][t].end(a)
					s.mail[t][v.p].end(b)
					return true
				})
			}
		}
	}
}

// fenced: a rank that sees itself out ends its call, and writes nothing more.
func (v *mover) fenced(_ *State, q *Proc) bool {
	q.stop(pcFenced)
	q.quiesced = q.epoch + 1
	return true
}

// stop ends all operations of the epoch. What others told stays, and how far
// operation numbers have got.
func (q *Proc) stop(pc uint8) {
	q.pc, q.work, q.deferred = pc, 0, [maxDeferred]Deferred{}
	for j := range q.slot {
		l := &q.slot[j]
		l.live, l.dispatching, l.combining = 0, 0, 0
	}
}

// messagesDrained: every rank that may still listen has taken what was sent.
func (v *mover) messagesDrained(s *State, q *Proc) bool {
	if v.Mutation == leavesAtOnce {
		return true
	}
	for r := range v.Ranks {
		if m := &s.mail[v.p][r]; r != v.p && has(s.members(v.p), r) && m.cut == 0 && m.n > 0 {
			return false
		}
	}
	at := *s
	return !v.flush(&at, &at.proc[v.p])
}

// leave ends this rank's part in its epoch: for good, or for an update.
func (v *mover) leave(s *State, q *Proc) bool {
	if !v.messagesDrained(s, q) {
		return false
	}
	if v.Mutation != leavesBeforeQuiesced {
		q.quiesced = q.epoch + 1
	}
	for t := range v.Ranks {
		s.proc[t].observed[v.p] = q.quiesced // it comes before the news of the leave
	}
	q.quiesced = q.epoch + 1
	if set := s.set(q.epoch); has(set, v.p) {
		s.agree(q.epoch, set&^bit(v.p))
		s.left |= bit(v.p)
	}
	if v.program(q, v.p)[q.call].Kind == Update {
		q.stop(pcMeet)
		return true
	}
	for t := range v.Ranks {
		s.mail[v.p][t].end(0) // it takes its links along
		s.mail[t][v.p].end(0)
	}
	*q = Proc{epoch: q.epoch, seen: q.seen, quiesced: q.quiesced, pc: pcClosed}
	return true
}

// comesBack: a rank that was fenced comes to the update.
func (v *mover) comesBack(q *Proc) {
	if v.Again != nil && q.epoch == 0 {
		v.try(stepLeave, -1, func(_ *State, q *Proc) bool {
			q.pc = pcMeet
			return true
		})
	}
}

// rendezvous: all live ranks have come. Links are made anew; what was on its way
// over the old ones still comes, which is more than core/link lets happen.
func (v *mover) rendezvous() {
	s := &v.from
	if v.Again == nil || s.met == 1 {
		return
	}
	set, base := uint8(0), uint8(0)
	for p := range v.Ranks {
		q := &s.proc[p]
		if q.dead == 1 {
			continue
		}
		if q.pc != pcMeet {
			return
		}
		set |= bit(p)
		base = max(base, q.next)
		for j := range v.Slots {
			base = max(base, q.slot[j].served)
		}
	}
	if v.Mutation == oldEpochsCount {
		base = 0
	}
	v.p = 0
	v.try(stepMeet, -1, func(s *State, _ *Proc) bool {
		s.met, s.base, s.left = 1, base, 0
		s.chain[1][0] = set
		for p := range v.Ranks {
			for t := range v.Ranks {
				if has(set, p) && has(set, t) {
					s.mail[p][t].cut = 0
				}
			}
		}
		return true
	})
}

// install begins the new epoch on one rank.
func (v *mover) install(s *State, q *Proc) bool {
	if s.met == 0 {
		return false
	}
	q.epoch, q.seen, q.pc, q.call, q.next = 1, 0, pcIdle, 0, s.base
	for j := range v.Slots {
		l := &q.slot[j]
		l.lastSent, l.outs, l.back = [maxRanks]Sent{}, [maxRanks]Outs{}, [maxRanks]Outs{}
		l.in, l.shadowDone = [maxRanks]In{}, [maxRanks]Word{}
		l.op, l.sent, l.unsent, l.awaited, l.counted = 0, 0, 0, 0, 0
		l.combines, l.published, l.need = 0, 0, 0
		first := s.base + 1
		for v.slotOf(first) != j {
			first++
		}
		v.open(s, l, first)
	}
	return true
}
