package store

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
)

// TestFirstQuotaOfATenant: a put that comes while the ages of the blocks are being noted is not refused, and evicts none that is
// not the oldest.
func TestFirstQuotaOfATenant(t *testing.T) {
	w := memory(t)
	o := w.owned(t, 1, "a")
	for i := range 20 {
		require.NoError(t, o.put(fmt.Sprint(i), 100))
	}
	var first record.Hash // in the order in which the blocks are noted
	w.s.index.Each(func(b *index.Block) {
		if first == (record.Hash{}) {
			first = b.Hash
		}
	})
	shard := func(h record.Hash) byte { return h[15] % 64 }
	key := "new"
	for shard(w.s.secret.Hash(&o.digest, []byte(key))) == shard(first) {
		key += "er"
	}
	var both sync.WaitGroup
	w.s.index.Change(first, func(*index.Block) bool {
		both.Go(func() { w.setQuotas(map[[16]byte]int64{o.tenant: 20 * page}) })
		for quota, _ := w.s.used(o.tenant); quota == 0; quota, _ = w.s.used(o.tenant) {
			time.Sleep(time.Millisecond)
		}
		quota, _ := w.s.used(o.tenant)
		assert.EqualValues(t, 20*page, quota, "what stats show")
		assert.NoError(t, o.put(key, 100))
		return true
	})
	both.Wait()
	for i := range 20 {
		require.Equal(t, i > 0, o.has(fmt.Sprint(i)), i)
	}
	require.True(t, o.has(key))
	w.accounts()
}

// TestQuotaPassesPinnedOnce: old blocks that are pinned cost the puts that follow nothing more than the first of them.
func TestQuotaPassesPinnedOnce(t *testing.T) {
	w := memory(t)
	o := w.owned(t, 1, "a")
	w.setQuotas(map[[16]byte]int64{o.tenant: 100 * page})
	for i := range 100 {
		require.NoError(t, o.put(fmt.Sprint(i), 100))
		if i < 50 {
			o.pin(fmt.Sprint(i), time.Hour)
		}
	}
	require.NoError(t, o.put("first", 100))
	of := w.s.names.of(o.ns).tenant
	for i := range 49 {
		oldest := of.oldest[0]
		require.NoError(t, o.put(fmt.Sprint("more", i), 100))
		require.False(t, w.s.index.Has(oldest.hash), "the oldest age is of a block that is evicted")
	}
}

// TestQuotaBesidePinned: a put that does not fit beside what is pinned is refused, and no block is evicted for it. Once a pin is
// over it fits.
func TestQuotaBesidePinned(t *testing.T) {
	w := memory(t)
	o := w.owned(t, 1, "a")
	w.setQuotas(map[[16]byte]int64{o.tenant: 20 * page})
	for i := range 20 {
		require.NoError(t, o.put(fmt.Sprint(i), 100))
		if i%4 != 0 {
			o.pin(fmt.Sprint(i), time.Hour)
		}
	}
	require.ErrorIs(t, o.put("six", 6*page-1000), ErrQuota)
	for i := range 20 {
		require.True(t, o.has(fmt.Sprint(i)), i)
	}
	require.Zero(t, w.s.Stats().EvictedQuota)
	o.pin("1", 0)
	require.NoError(t, o.put("six", 6*page-1000))
	require.EqualValues(t, 6, w.s.Stats().EvictedQuota)
	o.delete("2")
	require.NoError(t, o.put("seven", 7*page-1000), "the pin of a deleted block takes nothing")
}

// A put for which a store in memory has no room takes nothing of the quota.
func TestQuotaOfAFullStore(t *testing.T) {
	w := newWorld(t, 1, inMemory{newDisk(1<<16, 5)}, Config{})
	o := w.owned(t, 1, "a")
	w.setQuotas(map[[16]byte]int64{o.tenant: 1 << 30})
	var err error
	for i := 0; err == nil; i++ {
		if err = o.put(fmt.Sprint(i), 5000); err == nil {
			o.pin(fmt.Sprint(i), time.Hour)
		}
	}
	require.ErrorIs(t, err, ErrFull)
	_, used := w.s.used(o.tenant)
	require.Equal(t, w.s.taken()[o.tenant], used)
}

// TestEvictionsForQuotasStop: evictions for quotas end before the next block once they are told to, and go on when they are asked for
// again.
func TestEvictionsForQuotasStop(t *testing.T) {
	w := newWorld(t, 1, inMemory{newDisk(1<<16, 5)}, Config{})
	o := w.owned(t, 1, "a")
	for i := range 4 {
		require.NoError(t, o.put(fmt.Sprint(i), 100))
	}
	_, all := w.s.used(o.tenant)
	w.s.SetQuotas(map[[16]byte]int64{o.tenant: 1})
	stop := make(chan struct{})
	close(stop)
	w.s.EvictOverQuotas(stop)
	_, used := w.s.used(o.tenant)
	require.Equal(t, all, used)
	w.s.EvictOverQuotas(nil)
	_, used = w.s.used(o.tenant)
	require.Zero(t, used)
}

// setQuotas sets quotas and evicts what is over them, as a server does one behind the other.
func (w *world) setQuotas(quotas map[[16]byte]int64) {
	w.s.SetQuotas(quotas)
	w.s.EvictOverQuotas(nil)
}
