package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/testenv"
)

// flatten makes an operation one of flat rows.
func (o *op) flatten() {
	o.args.Flat, o.args.Device.TopkWeights, o.combin.Flat = true, o.w.at, true
	o.combin.Device.TopkIdx, o.combin.Device.TopkWeights = 0, 0
}

// ranksOf are those that a token goes to.
func (o *op) ranksOf(token int) map[int]bool {
	local, to := int(shapeOf(o.r.ranks).NumExperts)/o.r.ranks, map[int]bool{}
	for _, e := range o.ids.values[token*topK:][:topK] {
		if e >= 0 {
			to[int(e)/local] = true
		}
	}
	return to
}

// checkFlat compares sums with those of a plain loop: experts return rows as they
// came, so each rank that a token went to brings it back once.
func (o *op) checkFlat() {
	h := int(shapeOf(o.r.ranks).Hidden)
	for token := range o.args.NumTokens {
		n := float32(len(o.ranksOf(token)))
		for j := range h {
			require.Equal(o.r.t, n*float(o.x.values[token*h+j]), float(o.out.values[token*h+j]), "rank %d token %d value %d", o.r.self, token, j)
		}
	}
}

// checkFlatRows compares what rank `at` received with what all sent, which lies in
// order of rank and token.
func checkFlatRows(all []*op, at int) {
	o := all[at]
	t, res, h := o.r.t, &o.res, int(o.res.Slab.Hidden)
	local := shapeOf(o.r.ranks).NumExperts / int64(o.r.ranks)
	var rows []uint16
	var info, count []int32
	var ids []int64
	var weights []float32
	o.r.must(func() error {
		count = cudatest.Read[int32](t, o.r.emu, res.RecvCount, 1)
		n := int(count[0])
		rows = cudatest.Read[uint16](t, o.r.emu, res.RecvX, n*h)
		info = cudatest.Read[int32](t, o.r.emu, res.SrcInfo, n)
		ids = cudatest.Read[int64](t, o.r.emu, res.Columns[0], n*topK)
		weights = cudatest.Read[float32](t, o.r.emu, res.Columns[1], n*topK)
		return nil
	})
	i := 0
	for _, from := range all {
		for token := range from.args.NumTokens {
			if !from.ranksOf(token)[at] {
				continue
			}
			require.EqualValues(t, token, info[i])
			require.Equal(t, from.x.values[token*h:][:h], rows[i*h:][:h])
			for k := range topK {
				id, w := int64(-1), float32(0)
				if e := from.ids.values[token*topK+k]; e >= 0 && e/local == int64(at) {
					id, w = e%local, from.w.values[token*topK+k]
				}
				require.Equal(t, id, ids[i*topK+k])
				require.Equal(t, w, weights[i*topK+k])
			}
			i++
		}
	}
	require.EqualValues(t, i, count[0])
}

// TestHostsForms: flat rows and rows per expert in turn, in one buffer, with and
// without deterministic order, between ranks of which some are on other hosts.
func TestHostsForms(t *testing.T) {
	for _, of := range []string{"ab", "aab", "abc"} {
		for _, ordered := range []bool{false, true} {
			if testing.Short() && (of != "abc" || !ordered) {
				continue
			}
			t.Run(fmt.Sprint(of, ordered), func(t *testing.T) {
				cfg := configOf(t, len(of))
				cfg.Deterministic = ordered
				h := openHostsAs(t, of, true, cfg).connect(func(d domain.Domain) domain.Domain { return d })
				rng := rand.New(rand.NewPCG(testenv.Seed(t), 71))
				for turn := range 4 {
					h.turn(rng, turn%2 == 0)
				}
			})
		}
	}
}

// turn runs an operation of all ranks.
func (h *hosts) turn(rng *rand.Rand, flat bool) {
	var all []*op
	for _, r := range h.ranks {
		r.used = 256 // but active
		o := newOp(r, rng)
		if flat {
			o.flatten()
		}
		all = append(all, o)
	}
	for _, o := range all {
		o.dispatch()
	}
	for r, o := range all {
		o.r.sync()
		require.NoError(h.t, o.r.Err())
		if flat {
			checkFlatRows(all, r)
		} else {
			checkRows(all, r)
		}
	}
	for _, o := range all {
		o.combine()
	}
	for _, o := range all {
		o.r.sync()
		require.NoError(h.t, o.r.Err())
		if flat {
			o.checkFlat()
		} else {
			o.check()
		}
	}
}
