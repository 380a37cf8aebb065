package fifo_test

import (
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// TestMutations: mistakes on either side are noticed, by values or by the race
// detector.
func TestMutations(t *testing.T) {
	all := []testenv.Mutation{
		{Name: "taken is told before it is copied", File: "queue.go", Args: []string{"-run", "^TestThreads$", "-race"},
			From:    "out[n] = Descriptor{What: d[entryWhat], Bytes: d[entryBytes], Number: d[entryNumber]}\n\t\tq.next++\n\t}\n\tif n > 0 {",
			To:      "q.next++\n\t\tatomic.StoreUint64(&q.words[wordTaken], q.next)\n\t\tout[n] = Descriptor{What: d[entryWhat], Bytes: d[entryBytes], Number: d[entryNumber]}\n\t}\n\tif false {",
			Noticed: "DATA RACE|--- FAIL: "},
		{Name: "any number that is not 0 will do", File: "queue.go",
			From: "!= q.next+1 {", To: "== 0 {"},
		{Name: "the generation does not count", File: "queue.go",
			From: "!= q.next+1 {", To: "<<16 != (q.next+1)<<16 {"},
		{Name: "room is never told", File: "queue.go", Args: []string{"-run", "TestGenerations"},
			From: "if n > 0 {", To: "if n > 1 {"},
		{Name: "a restart keeps the number", File: "queue.go",
			From: "(q.next>>protocol.FifoShift + 1) << protocol.FifoShift", To: "q.next"},
		{Name: "a restart does not tell the device", File: "queue.go", Args: []string{"-run", "TestNext|TestGenerations"},
			From: "atomic.StoreUint64(&q.words[wordTaken], q.next)\n\tatomic.StoreUint64(&q.words[wordEnded], 0)",
			To:   "atomic.StoreUint64(&q.words[wordEnded], 0)"},
		{Name: "the latest reason stays", File: "queue.go",
			From: "atomic.CompareAndSwapUint64(&q.words[wordEnded], 0, reason)", To: "atomic.StoreUint64(&q.words[wordEnded], reason)"},
		{Name: "one more than there is room for", File: "fifotest/push.go",
			From: "p.ticket-free >= d.Num", To: "p.ticket-free > d.Num"},
		{Name: "two draw one number", File: "fifotest/push.go",
			From: "!d.Next.CompareAndSwap(p.ticket, p.ticket+1)", To: "d.Next.Store(p.ticket + 1); false"},
		{Name: "the number comes before the rest", File: "fifotest/push.go",
			From: "case 5:", To: "case 5:\n\t\tatomic.StoreUint64(&p.e[seq], p.ticket+1)"},
	}
	for i := range all {
		if all[i].Args == nil { // a mistake may make goroutines wait for ever
			all[i].Args = []string{"-run", "TestEveryOrder|TestGenerations|TestEnd"}
		}
	}
	testenv.RunMutations(t, all)
}
