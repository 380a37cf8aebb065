package blocks

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/client"
	"github.com/moewire/moewire/core/store/record"
)

// flips is a server with a file that is changed between two lives.
type flips struct {
	t    *testing.T
	rng  *rand.Rand
	path string
	keys []*known
}

const flipCapacity, flipMost = 4 << 20, 9000

func newFlips(t *testing.T, numKeys int) *flips {
	f := &flips{t: t, rng: rand.New(rand.NewPCG(newSeed(t), 3)), path: t.TempDir()}
	for i := range numKeys {
		f.keys = append(f.keys, newKnown(fmt.Sprint("key", i)))
	}
	f.live(syscall.SIGTERM, func(p *process, c *client.Client) {
		for _, k := range f.keys {
			k.latest = 1
			ok, err := c.Put([]byte(k.name), k.payload(1, flipMost), nil)
			require.NoError(t, err)
			require.True(t, ok)
		}
		require.NoError(t, c.Flush(testTimeout))
	})
	return f
}

// live is one life, which ends by a signal.
func (f *flips) live(end syscall.Signal, during func(*process, *client.Client)) {
	p := begin(f.t, life{Path: f.path, Capacity: flipCapacity})
	require.True(f.t, p.await(), "%s", p.stderr.String())
	c := p.dial(client.CarrierTCP)
	during(p, c)
	c.Close()
	p.signal(end)
	p.ends()
}

func (f *flips) get(c *client.Client, k *known) int {
	got, err := c.Get([]byte(k.name))
	require.NoError(f.t, err)
	return k.versionOf(got, flipMost)
}

// change changes the file of a server that has ended.
func (f *flips) change(how func(data []byte)) {
	name := filepath.Join(f.path, "blocks")
	data, err := os.ReadFile(name)
	require.NoError(f.t, err)
	how(data)
	require.NoError(f.t, os.WriteFile(name, data, 0o600))
}

// part is a part of a block's record: its header, its key or its payload.
func (f *flips) part(data []byte, k *known, n int) []byte {
	payload := k.payload(1, flipMost)
	at := bytes.Index(data, payload)
	require.Positive(f.t, at, k.name)
	head := at - int(record.PayloadOff(len(k.name)))
	switch n {
	case 0:
		return data[head : head+104]
	case 1:
		return data[head+record.HeaderBytes:][:len(k.name)]
	}
	return data[at:][:len(payload)]
}

func (f *flips) flip(part []byte) { part[f.rng.IntN(len(part))] ^= 1 << f.rng.IntN(8) }

// TestFlippedRecords: one bit of the header, the key or the payload of a block is flipped between two lives of a server. The block
// is a miss, counted, for good; the others are there.
func TestFlippedRecords(t *testing.T) {
	f := newFlips(t, 24)
	f.change(func(data []byte) {
		for i, k := range f.keys {
			if i%4 != 3 {
				f.flip(f.part(data, k, i%4))
			}
		}
	})
	for again := range 2 {
		f.live(syscall.SIGKILL, func(p *process, c *client.Client) {
			for i, k := range f.keys {
				require.Equal(t, i%4 == 3, f.get(c, k) == 1, k.name)
			}
			if again == 0 {
				// The server looks at a block beside what else it is asked.
				require.Eventually(t, func() bool { return p.stats(c).Spoiled == 18 }, 20*time.Second, time.Millisecond)
			}
		})
	}
}

// TestFlippedFile: bits anywhere in the file of a server that was stopped or killed are flipped, life after life. A reader gets
// the bytes that were written, or nothing.
func TestFlippedFile(t *testing.T) {
	f := newFlips(t, 60)
	lives := 30
	if testing.Short() {
		lives = 6
	}
	misses := 0
	for n := range lives {
		f.change(func(data []byte) {
			for range 1 + f.rng.IntN(40) {
				at := f.rng.IntN(len(data) / record.PageBytes)
				f.flip(data[at*record.PageBytes:][:record.PageBytes])
				f.flip(data[at*record.PageBytes:][:64])
			}
		})
		f.live([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[n%2], func(p *process, c *client.Client) {
			for _, k := range f.keys {
				version := f.get(c, k)
				require.GreaterOrEqual(t, version, 0, "%s has other bytes", k.name)
				if version == 0 {
					misses++
					_, err := c.Put([]byte(k.name), k.payload(1, flipMost), nil)
					require.NoError(t, err)
				}
			}
		})
	}
	require.NotZero(t, misses)
}
