package inproc_test

import (
	"testing"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport/transporttest"
)

func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Harness{
		New: func(_ *testing.T, n int, controlBytes int64) []domain.Domain {
			return inproc.New(n, controlBytes)
		},
		Kill: inproc.Kill,
	})
}

func TestNewRefusesBadSizes(t *testing.T) {
	for _, n := range []int{0, rankset.MaxRanks + 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d ranks: no panic", n)
				}
			}()
			inproc.New(n, 8)
		}()
	}
}
