package fabric

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/verbs"
	"github.com/moewire/moewire/core/wire"
)

// TestOverVerbs does what TestOverTCP does on RDMA devices, with signed handshakes.
func TestOverVerbs(t *testing.T) {
	for _, mode := range []Mode{Immediates, Messages} {
		t.Run(mode.String(), func(t *testing.T) {
			w, ring := &world{}, wire.GenerateKeyring()
			var all []*sys.Mapping
			for range 2 {
				tr, err := verbs.NewGroup(verbs.Config{NumEndpoints: 8})
				if errors.Is(err, transport.ErrNotSupported) {
					testenv.Lacking(t, "verbs", err.Error())
				}
				require.NoError(t, err)
				_, err = Open(Config{Transport: tr, Mode: mode})
				require.ErrorContains(t, err, "Keys must be given")
				f, err := Open(Config{Transport: tr, Keys: ring, Mode: mode, SliceBytes: 100_000})
				require.NoError(t, err)
				w.fabs = append(w.fabs, f)
			}
			w.overCarrier(t, mode, func(tb testing.TB, f *Fabric, n int) ([]byte, RegionID, transport.RemoteRegion) {
				m, err := sys.MapAnonymous(int64(n))
				require.NoError(tb, err)
				all = append(all, m)
				id, err := f.Register(m.Bytes()[:n], transport.AccessRead|transport.AccessWrite)
				require.NoError(tb, err)
				at, err := f.Remote(id)
				require.NoError(tb, err)
				return m.Bytes()[:n], id, at
			})
			for _, m := range all {
				require.NoError(t, m.Unmap())
			}
		})
	}
}
