package multihost

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/wire"
)

// These tests run every rank as a process of its own: the test binary again, with
// childVariable set to "rank,numRanks,host,bound in ms". A child prints its metadata,
// reads that of every rank, prints "connected", and then plays a wait of core/ep/cpu: it
// takes out the ranks that it sees dying, and prints each new set.
const (
	childVariable = "MOEWIRE_TEST_MIXED_CHILD"
	keyVariable   = "MOEWIRE_TEST_MIXED_KEY"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(childVariable); spec != "" {
		if err := runChild(spec); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runChild(spec string) error {
	var rank, ranks, bound int
	var host string
	if _, err := fmt.Sscanf(strings.ReplaceAll(spec, ",", " "), "%d %d %s %d", &rank, &ranks, &host, &bound); err != nil {
		return err
	}
	keys, err := wire.NewKeyring(func() ([]byte, error) { return []byte(os.Getenv(keyVariable)), nil })
	if err != nil {
		return err
	}
	cfg := testConfig(keys, rank, ranks, host)
	cfg.Bound = time.Duration(bound) * time.Millisecond
	l, err := Open(cfg)
	if err != nil {
		return err
	}
	fmt.Println("metadata", hex.EncodeToString(l.Metadata()))
	in := bufio.NewReader(os.Stdin)
	all := make([][]byte, ranks)
	for r := range all {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		if all[r], err = hex.DecodeString(strings.TrimSpace(line)); err != nil {
			return err
		}
	}
	d, err := l.Connect(all, testTimeout)
	if err != nil {
		return err
	}
	fmt.Println("connected")
	return watch(d, rank, in)
}

// watch ends with its standard input.
func watch(d *Domain, rank int, in io.Reader) error {
	closed := make(chan bool)
	go func() { _, _ = io.Copy(io.Discard, in); close(closed) }()
	last, shown := d.Members().Load(), ""
	for {
		var lost uint64
		for r := range d.Present().Without(rank).All() {
			if last>>r&1 == 1 && d.Process(r).Dying() {
				membership.Fence(d.Members(), 1, rank, r)
			}
			if errors.Is(d.Process(r).Lost(), domain.ErrExited) {
				lost |= 1 << r
			}
		}
		last = d.Members().Load()
		if now := fmt.Sprintf("set %b lost %b", ranksOf(last).Word(), lost); now != shown {
			shown = now
			fmt.Println(now)
		}
		select {
		case <-closed:
			return d.Close()
		case <-time.After(time.Millisecond):
		}
	}
}

func startChildren(t *testing.T, hosts []string, bound time.Duration) []*testenv.Process {
	const key = "1 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde0"
	children := make([]*testenv.Process, len(hosts))
	var all strings.Builder
	for r, h := range hosts {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), keyVariable+"="+key,
			fmt.Sprintf("%s=%d,%d,%s,%d", childVariable, r, len(hosts), h, bound.Milliseconds()))
		children[r] = testenv.StartProcess(t, cmd, testTimeout)
		fmt.Fprintln(&all, children[r].Await("metadata"))
	}
	for _, c := range children {
		_, err := io.WriteString(c.In, all.String())
		require.NoError(t, err)
	}
	for _, c := range children {
		c.Await("connected")
	}
	return children
}

// TestKill: kill -9 of any rank, or of two, is noticed by its connections, and every
// other rank goes on together; no unresponsiveness timeout has to pass for that.
func TestKill(t *testing.T) {
	hosts := []string{"a", "a", "b", "b"}
	for _, killed := range []rankset.Set{rankset.Of(0), rankset.Of(3), rankset.Of(0, 1), rankset.Of(0, 2), rankset.Of(1, 2, 3)} {
		t.Run(fmt.Sprint(killed), func(t *testing.T) {
			children := startChildren(t, hosts, time.Hour)
			begin := time.Now()
			for r := range killed.All() {
				require.NoError(t, children[r].Process.Kill())
			}
			for r := range rankset.Upto(4).Minus(killed).All() {
				children[r].Await(fmt.Sprintf("set %b lost %b", rankset.Upto(4).Minus(killed).Word(), killed.Word()))
			}
			t.Logf("all agreed after %v", time.Since(begin))
		})
	}
}

// TestStopped: a rank that is unresponsive for the bound is taken out, by the ranks that
// are more than half; once it runs again it finds itself out.
func TestStopped(t *testing.T) {
	children := startChildren(t, []string{"a", "b", "c"}, 300*time.Millisecond)
	require.NoError(t, children[1].Process.Signal(syscall.SIGSTOP))
	children[0].Await("set 101 lost 0")
	children[2].Await("set 101 lost 0")
	require.NoError(t, children[1].Process.Signal(syscall.SIGCONT))
	for set := uint64(1 << 1); set>>1&1 == 1; {
		_, err := fmt.Sscanf(children[1].Await("set"), "%b", &set)
		require.NoError(t, err)
	}
}
