package blocks

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/wire"
)

// childVariable is set for a process that is to be a server: a life, as JSON.
const childVariable = "BLOCKS_CHILD"

const keyText = "1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

// life says what a server is, and what happens to its disk from its start on.
type life struct {
	Path     string
	Capacity int64
	Trouble  trouble
}

// trouble is what happens to a server's disk.
type trouble struct {
	Seed   uint64
	Die    int     // at which call of the disk the server kills itself, from now on; 0: never
	Writes float64 // how many of the writes fail
	Syncs  float64 // how many of the syncs fail, which costs what they may have lost
	Reads  float64 // how many of the reads fail
	Silent float64 // how many records are written in part without an error
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve is the server process: it ends at SIGTERM, and takes a trouble from each line of its input.
func serve(text string) error {
	var l life
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return err
	}
	files, err := medium.OpenFiles(l.Path, l.Capacity)
	if err != nil {
		return err
	}
	bad := &badDisk{Files: files}
	bad.set(l.Trouble)
	log := func(line string) { fmt.Fprintln(os.Stderr, line) }
	s, err := store.Open(store.Config{Medium: bad, Secret: files.Secret(), Durability: store.FlushNone, Log: log})
	if err != nil {
		return err
	}
	keys, err := wire.NewKeyring(func() ([]byte, error) { return []byte(keyText), nil })
	if err != nil {
		return err
	}
	srv, err := server.Listen(server.Config{
		Store: server.Of(s), Storage: 2, Arena: files, Addr: "127.0.0.1:0", Keys: keys, Stats: func() any { return s.Stats() }, Log: log,
	})
	if err != nil {
		return err
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	fmt.Println("ready", srv.Addr())
	go obey(bad)
	<-term
	srv.Drain(time.Now().Add(5 * time.Second))
	return s.Close()
}

func obey(bad *badDisk) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var t trouble
		if json.Unmarshal(lines.Bytes(), &t) == nil {
			bad.set(t)
			fmt.Println("ok")
		}
	}
}

// badDisk are files with calls that fail as a trouble says: writes not at all or half way.
type badDisk struct {
	*medium.Files
	mu      sync.Mutex
	trouble trouble
	rng     *rand.Rand
	calls   int
}

func (d *badDisk) set(t trouble) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.trouble, d.calls, d.rng = t, 0, rand.New(rand.NewPCG(t.Seed, 7))
}

// failure is what a call comes to: how much of it is done, its error, and whether the process ends then.
type failure struct {
	share float64
	err   error
	dies  bool
}

func (d *badDisk) draw(rate, silent float64) failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	f := failure{share: 1, dies: d.calls == d.trouble.Die}
	switch {
	case f.dies:
		f.share = d.rng.Float64()
	case d.rng.Float64() < rate:
		f.err = []error{syscall.EIO, syscall.ENOSPC}[d.rng.IntN(2)]
		f.share = max(0, d.rng.Float64()*1.5-0.5) // nothing, or a part
	case d.rng.Float64() < silent:
		f.share = d.rng.Float64()
	}
	return f
}

func (f failure) end(err error) error {
	if f.dies {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		time.Sleep(time.Minute)
	}
	return errors.Join(f.err, err)
}

func (d *badDisk) Write(segment int, off int64, pieces ...[]byte) error {
	silent := d.trouble.Silent
	if len(pieces) < 2 { // what is overwritten in place is not
		silent = 0
	}
	f := d.draw(d.trouble.Writes, silent)
	left := 0
	for _, p := range pieces {
		left += len(p)
	}
	left = int(f.share * float64(left))
	var parts [][]byte
	for _, p := range pieces {
		part := p[:min(left, len(p))]
		parts, left = append(parts, part), left-len(part)
	}
	return f.end(d.Files.Write(segment, off, parts...))
}

func (d *badDisk) Read(segment int, off int64, p []byte) error {
	f := d.draw(d.trouble.Reads, 0)
	if f.err != nil || f.dies {
		return f.end(nil)
	}
	return d.Files.Read(segment, off, p)
}

func (d *badDisk) Sync(segment int) error {
	f := d.draw(d.trouble.Syncs, 0)
	if f.err != nil || f.dies {
		return f.end(nil)
	}
	return d.Files.Sync(segment)
}
