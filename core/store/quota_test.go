package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/record"
	"github.com/moewire/moewire/core/store/tag"
)

// owned is a namespace of a tenant.
type owned struct {
	*Store
	ns     NS
	tenant record.Tenant
	digest record.Digest
}

func (w *world) owned(t require.TestingT, tenant byte, model string) owned {
	digest := digestOf(model)
	copy(digest[16:], []byte{tenant, 15: 0})
	ns, err := w.s.Namespace(digest, model)
	require.NoError(t, err)
	return owned{w.s, ns, digest.Tenant(), digest}
}

func (o owned) put(key string, bytes int) error {
	data := make([]byte, bytes)
	tagged := tag.New(o.TagKey(), o.digest).Of([]byte(key), data)
	w, err := o.Allocate(Allocation{NS: o.ns, Key: []byte(key), Bytes: int64(bytes), Tag: tagged})
	if err != nil {
		return err
	}
	copy(w.Buffer(), data)
	return w.Commit()
}

func (o owned) has(key string) bool {
	return o.Exists(o.ns, [][]byte{[]byte(key)}, make([]bool, 1)) == 1
}

func (o owned) get(key string) bool {
	leases := make([]Lease, 1)
	defer leases[0].Release()
	return o.Acquire(o.ns, [][]byte{[]byte(key)}, leases) == 1
}

func (o owned) delete(key string) { o.Delete(o.ns, [][]byte{[]byte(key)}, make([]bool, 1)) }

func (o owned) pin(key string, d time.Duration) {
	o.Pin(o.ns, [][]byte{[]byte(key)}, time.Now().Add(d), make([]bool, 1))
}

// taken counts what the blocks of tenants take, from the index alone.
func (s *Store) taken() map[record.Tenant]int64 {
	sum := map[record.Tenant]int64{}
	s.index.Each(func(b *index.Block) { sum[s.names.of(NS(b.Namespace)).digest.Tenant()] += b.RecordBytes() })
	return sum
}

func (s *Store) used(id record.Tenant) (quota, used int64) {
	s.names.mu.Lock()
	defer s.names.mu.Unlock()
	return s.names.tenant(id).now()
}

const page = record.PageBytes

// TestQuotaModel is random calls of one tenant with two namespaces, against a list of its blocks from the oldest on.
func TestQuotaModel(t *testing.T) {
	type block struct {
		of     int
		key    string
		bytes  int64
		pinned bool
	}
	for seed := range testenv.NumSeeds(t, 3) {
		rng := rand.New(rand.NewPCG(testenv.Seed(t)+seed, 11))
		w := memory(t)
		both := []owned{w.owned(t, 1, "a"), w.owned(t, 1, "b")}
		other := w.owned(t, 2, "a")
		require.NoError(t, other.put("theirs", 5000))
		quota := int64(20 * page)
		w.setQuotas(map[[16]byte]int64{both[0].tenant: quota})
		var list []block // oldest first
		used := func() (n int64) {
			for _, b := range list {
				n += b.bytes
			}
			return n
		}
		// room evicts the oldest blocks while they and some more bytes are over the quota, unless these do not fit beside what is pinned.
		// Pinned ones that it meets are the newest then.
		room := func(bytes int64) bool {
			var passed []block
			stays := bytes
			for _, b := range list {
				if b.pinned {
					stays += b.bytes
				}
			}
			if bytes > 0 && stays > quota {
				return false
			}
			over := used() + bytes - quota
			for over > 0 && len(list) > 0 {
				if list[0].pinned {
					passed = append(passed, list[0])
				} else {
					over -= list[0].bytes
				}
				list = list[1:]
			}
			list = append(list, passed...)
			return over <= 0
		}
		for range 1500 {
			of, key, pages := rng.IntN(2), fmt.Sprint(rng.IntN(30)), 1+rng.IntN(6)
			if rng.IntN(50) == 0 {
				pages = 21
			}
			at := slices.IndexFunc(list, func(b block) bool { return b.of == of && b.key == key })
			switch op := rng.IntN(9); {
			case op < 4 && at < 0:
				bytes := int64(pages) * page
				fits := room(bytes)
				err := both[of].put(key, pages*page-1000)
				if require.Equal(t, fits, err == nil, "%v", err); !fits {
					require.ErrorIs(t, err, ErrQuota)
				} else {
					list = append(list, block{of, key, bytes, false})
				}
			case op == 4 && at >= 0:
				require.True(t, both[of].get(key))
				b := list[at]
				list = append(slices.Delete(list, at, at+1), b)
			case op == 5:
				both[of].delete(key)
				if at >= 0 {
					list = slices.Delete(list, at, at+1)
				}
			case op == 6 && at >= 0 && rng.IntN(3) == 0:
				both[of].pin(key, time.Hour)
				list[at].pinned = true
			case op == 7 && at >= 0:
				both[of].pin(key, 0)
				list[at].pinned = false
			case op == 8 && rng.IntN(10) == 0:
				quota = int64(5+rng.IntN(30)) * page
				w.setQuotas(map[[16]byte]int64{both[0].tenant: quota})
				room(0)
			}
			for _, b := range list {
				require.True(t, both[b.of].has(b.key), b.key)
			}
			_, counted := w.s.used(both[0].tenant)
			require.Equal(t, used(), counted)
			require.Equal(t, counted, w.s.taken()[both[0].tenant])
		}
		require.True(t, other.has("theirs"))
		w.accounts()
	}
}

// TestQuotaHolds: whatever several do at a time, a tenant never has more than its quota, and none has less for it. While segments
// are emptied too, and with writes that are given up.
func TestQuotaHolds(t *testing.T) {
	for name, m := range map[string]func() medium.Medium{
		"roomy": func() medium.Medium {
			m, err := medium.NewMemory(256 << 20)
			require.NoError(t, err)
			return m
		},
		"tight disk": func() medium.Medium { return newDisk(1<<18, 16) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, m(), Config{Durability: FlushNone})
			quotas := map[[16]byte]int64{{1}: 60 * page, {2}: 90 * page}
			w.setQuotas(quotas)
			quiet := w.owned(t, 3, "quiet")
			for i := range 20 {
				require.NoError(t, quiet.put(fmt.Sprint(i), 100))
			}
			var all sync.WaitGroup
			for worker := range 4 {
				all.Go(func() { quotaWorker(t, w, byte(1+worker%2), uint64(worker)) })
			}
			done := make(chan struct{})
			var watch sync.WaitGroup
			watch.Go(func() {
				for {
					for id, quota := range quotas {
						_, used := w.s.used(id)
						require.LessOrEqual(t, used, quota)
					}
					select {
					case <-done:
						return
					default:
					}
				}
			})
			all.Wait()
			close(done)
			watch.Wait()
			taken := w.s.taken()
			for id := range quotas {
				_, used := w.s.used(id)
				require.Equal(t, taken[id], used)
			}
			for i := range 20 {
				require.True(t, name != "roomy" || quiet.has(fmt.Sprint(i)), "evicted for another tenant")
			}
			require.NotZero(t, w.s.counts.evictedQuota.Load())
			w.accounts()
		})
	}
}

func quotaWorker(t *testing.T, w *world, tenant byte, seed uint64) {
	rng := rand.New(rand.NewPCG(testenv.Seed(t), seed))
	o := w.owned(t, tenant, fmt.Sprint(rng.IntN(3)))
	defer w.s.Leave(o.ns)
	steps := 2500
	if testing.Short() {
		steps = 400
	}
	for range steps {
		key := fmt.Sprint(rng.IntN(50))
		switch rng.IntN(8) {
		case 0:
			o.get(key)
		case 1:
			o.delete(key)
		case 2:
			o.pin(key, time.Duration(rng.IntN(2))*time.Millisecond)
		case 3:
			if writing, err := o.Allocate(Allocation{NS: o.ns, Key: []byte(key), Bytes: 9000}); err == nil {
				writing.Abort()
			}
		default:
			if err := o.put(key, rng.IntN(30_000)); err != nil && !errors.Is(err, ErrQuota) && !errors.Is(err, ErrFull) {
				require.True(t, errors.Is(err, ErrExists) || errors.Is(err, ErrConflict), "%v", err)
			}
		}
	}
}

// TestQuotaCostsNobodyElse: a tenant that goes on writing in a store with room for all leaves dead bytes, and makes its room of them.
func TestQuotaCostsNobodyElse(t *testing.T) {
	w := newWorld(t, 1, inMemory{newDisk(1<<18, 40)}, Config{})
	quiet, busy := w.owned(t, 2, "quiet"), w.owned(t, 1, "busy")
	w.setQuotas(map[[16]byte]int64{busy.tenant: 600 * page})
	for i := range 600 {
		require.NoError(t, quiet.put(fmt.Sprint(i), 100))
	}
	for i := range 12_000 {
		require.NoError(t, busy.put(fmt.Sprint(i), 100))
	}
	require.Greater(t, w.s.counts.reclaimed.Load(), uint64(100))
	require.Zero(t, w.s.counts.evictedCold.Load(), "evicted for another tenant")
	for i := range 600 {
		require.True(t, quiet.has(fmt.Sprint(i)), i)
	}
	require.EqualValues(t, 600*page, w.s.taken()[busy.tenant])
}

// A put that is not stored takes nothing of the quota, wherever it has ended.
func TestQuotaOfPutsThatFail(t *testing.T) {
	w := newWorld(t, 1, newDisk(1<<17, 8), Config{StagedBytes: 1})
	o := w.owned(t, 1, "a")
	w.setQuotas(map[[16]byte]int64{o.tenant: 200 * page})
	allocate := func(key string, bytes int64) (*Writing, error) {
		return w.s.Allocate(Allocation{NS: o.ns, Key: []byte(key), Bytes: bytes})
	}
	used := func() int64 { _, n := w.s.used(o.tenant); return n }
	large, err := allocate("large", 100_000)
	require.NoError(t, err)
	taken := used()
	require.GreaterOrEqual(t, taken, int64(100_000))
	_, err = allocate("other", 100_000)
	require.ErrorIs(t, err, ErrWouldBlock)
	require.Equal(t, taken, used())
	w.setQuotas(map[[16]byte]int64{o.tenant: taken + 12*page})
	for i := range 12 {
		require.NoError(t, o.put(fmt.Sprint(i), 100))
	}
	_, err = allocate("other", 40_000)
	require.ErrorIs(t, err, ErrWouldBlock)
	require.Equal(t, taken+12*page, used(), "evicted for what is tried again")
	large.Abort()
	w.setQuotas(map[[16]byte]int64{o.tenant: 12 * page})
	_, err = allocate("too much", 13*page)
	require.ErrorIs(t, err, ErrQuota)
	require.Zero(t, w.s.staged)
	for i := range 12 {
		o.delete(fmt.Sprint(i))
	}
	require.Zero(t, used())
	first, err := allocate("k", 100)
	require.NoError(t, err)
	second, err := allocate("k", 100)
	require.NoError(t, err)
	require.EqualValues(t, 2*page, used())
	require.NoError(t, first.Commit())
	require.ErrorIs(t, second.Commit(), ErrExists)
	require.EqualValues(t, page, used())
}

// TestQuotaAfterAStart: the blocks name their tenant. What was evicted for a quota stays away, and one that is lower by now is
// reached before a put.
func TestQuotaAfterAStart(t *testing.T) {
	d := newDisk(1<<18, 32)
	w := newWorld(t, 1, d, Config{Durability: FlushNone})
	w.setQuotas(map[[16]byte]int64{{1}: 30 * page})
	mine, theirs := w.owned(t, 1, "a"), w.owned(t, 2, "a")
	for i := range 200 {
		require.NoError(t, mine.put(fmt.Sprint(i), 3*page-1000))
		if i%4 == 0 {
			require.NoError(t, theirs.put(fmt.Sprint(i), 100))
		}
	}
	again := newWorld(t, 1, d.killed(), Config{Durability: FlushNone})
	mine, theirs = again.owned(t, 1, "a"), again.owned(t, 2, "a")
	for i := range 200 {
		require.Equal(t, i >= 190, mine.has(fmt.Sprint(i)), i)
		require.Equal(t, i%4 == 0, theirs.has(fmt.Sprint(i)), i)
	}
	again.setQuotas(map[[16]byte]int64{{1}: 10 * page})
	require.EqualValues(t, 9*page, again.s.taken()[mine.tenant])
	require.NoError(t, mine.put("one more", 3*page-1000))
	for i, want := range map[string]bool{"196": false, "197": false, "198": true, "199": true, "one more": true} {
		require.Equal(t, want, mine.has(i), i)
	}
	require.ErrorIs(t, mine.put("large", 11*page), ErrQuota)
	require.EqualValues(t, 9*page, again.s.taken()[mine.tenant], "nothing was evicted for what never fits")
	again.setQuotas(nil)
	require.NoError(t, mine.put("large", 11*page))
	require.EqualValues(t, 50*page, again.s.taken()[theirs.tenant])
	again.accounts()
}

// What a tenant's namespaces take, may take and were refused stands beside each of them, and blocks that are gone take no memory.
func TestQuotaStats(t *testing.T) {
	w := memory(t)
	a, b := w.owned(t, 1, "a"), w.owned(t, 1, "b")
	w.setQuotas(map[[16]byte]int64{a.tenant: 4 * page})
	require.NoError(t, a.put("1", 100))
	require.NoError(t, b.put("1", page))
	require.NoError(t, b.put("2", page))
	require.ErrorIs(t, a.put("2", 4*page), ErrQuota)
	st := w.s.Stats()
	require.EqualValues(t, 1, st.OverQuota)
	require.EqualValues(t, 1, st.EvictedQuota)
	for _, n := range st.Namespaces {
		switch n.Label {
		case "a":
			require.Equal(t, []int64{0, 4 * page, 4 * page, 1, 0}, []int64{n.UsedBytes, n.QuotaBytes, n.QuotaUsedBytes, int64(n.OverQuota), int64(n.EvictedQuota)})
		case "b":
			require.Equal(t, []int64{4 * page, 4 * page, 4 * page, 0, 1}, []int64{n.UsedBytes, n.QuotaBytes, n.QuotaUsedBytes, int64(n.OverQuota), int64(n.EvictedQuota)})
		default:
			require.Zero(t, n.QuotaBytes)
		}
	}
	for i := range 20 * spareAges {
		require.NoError(t, a.put(fmt.Sprint("k", i), 10))
		a.delete(fmt.Sprint("k", i))
	}
	w.s.names.mu.Lock()
	kept := len(w.s.names.tenants[a.tenant].oldest)
	w.s.names.mu.Unlock()
	require.LessOrEqual(t, kept, 2*spareAges)
}
