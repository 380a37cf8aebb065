package verbs_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/verbs"
)

const transferBytes = 64 << 10

// offer is what two processes tell one another.
type offer struct {
	Local  string
	Remote transport.RemoteRegion
}

func offerOf(e transport.Endpoint, r transport.Region) offer {
	return offer{Local: hex.EncodeToString(e.Local()), Remote: r.Remote()}
}

func (o offer) connect(t testing.TB, e transport.Endpoint) {
	t.Helper()
	local, err := hex.DecodeString(o.Local)
	require.NoError(t, err)
	require.NoError(t, e.Connect(local, time.Now().Add(testTimeout)))
}

// TestKilledProcess kills a process that writes and is written to, in the
// middle of it. Its peer's requests end, its queue pairs are gone, no byte of
// the peer's memory changes any more, and another process takes its place.
func TestKilledProcess(t *testing.T) {
	if os.Getenv("MOEWIRE_RDMA_CHILD") == "writer" {
		writeForEver(t)
		return
	}
	tr := open(t, verbs.Config{RetryCount: 3})
	region := register(t, tr, 2*transferBytes)
	for range 3 {
		oneKill(t, tr, region)
	}
	require.Zero(t, numQueuePairs(t))
	require.NoError(t, region.Close())
	require.NoError(t, tr.Close())
}

func oneKill(t *testing.T, tr *verbs.Transport, region transport.Region) {
	t.Helper()
	e := newEndpoint(t, tr)
	cmd, peer := startWriter(t, offerOf(e, region))
	peer.connect(t, e)
	require.Equal(t, 2, numQueuePairs(t))

	mine := transport.SendRequest{
		Op: transport.OpWrite, Remote: peer.Remote,
		Local: []transport.Piece{{Region: region, Off: transferBytes, Bytes: transferBytes}},
	}
	first := bytes.Clone(region.Bytes()[:transferBytes])
	eventually(t, "both write", func() bool {
		_, _ = e.PostSend([]transport.SendRequest{mine})
		var done [16]transport.Completion
		n, err := tr.Poll(done[:])
		require.NoError(t, err)
		return n > 0 && !bytes.Equal(first, region.Bytes()[:transferBytes])
	})
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	eventually(t, "its queue pair is gone", func() bool { return numQueuePairs(t) == 1 })
	after := bytes.Clone(region.Bytes()[:transferBytes])
	awaitFailure(t, tr, e, mine)
	finish(t, tr, e)
	require.True(t, bytes.Equal(after, region.Bytes()[:transferBytes]), "a dead process has written")
}

// awaitFailure posts until the peer's absence shows.
func awaitFailure(t *testing.T, tr *verbs.Transport, e transport.Endpoint, request transport.SendRequest) {
	t.Helper()
	seen := map[transport.Status]int{}
	eventually(t, "the endpoint fails", func() bool {
		_, _ = e.PostSend([]transport.SendRequest{request})
		var done [16]transport.Completion
		n, err := tr.Poll(done[:])
		require.NoError(t, err)
		for _, c := range done[:n] {
			seen[c.Status]++
		}
		return e.State() == transport.StateError
	})
	require.Equal(t, 1, seen[transport.StatusUnreachable], "%v", seen)
	var events [16]transport.Event
	failed := 0
	for _, ev := range events[:tr.PollEvents(events[:])] {
		if ev.Kind == transport.EventEndpointFailed && ev.Endpoint == e.ID() {
			failed++
		}
	}
	require.Equal(t, 1, failed)
}

// startWriter starts the other process and exchanges offers with it.
func startWriter(t *testing.T, mine offer) (*exec.Cmd, offer) {
	t.Helper()
	cmd := child(t, "writer")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	require.NoError(t, json.NewEncoder(in).Encode(mine))
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err)
	var theirs offer
	require.NoError(t, json.Unmarshal(line, &theirs), "%s", line)
	return cmd, theirs
}

// writeForEver is the other process. It ends by being killed, or with its
// parent.
func writeForEver(t *testing.T) {
	in := json.NewDecoder(os.Stdin)
	var peer offer
	require.NoError(t, in.Decode(&peer))
	tr := open(t, verbs.Config{})
	m, err := sys.MapAnonymous(transferBytes)
	require.NoError(t, err)
	region, err := tr.Register(m.Bytes(), both)
	require.NoError(t, err)
	e := newEndpoint(t, tr)
	peer.connect(t, e)
	text, err := json.Marshal(offerOf(e, region))
	require.NoError(t, err)
	fmt.Println(string(text))
	go func() { // the parent's end of the pipe is the only life line
		_, _ = io.Copy(io.Discard, in.Buffered())
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	var done [16]transport.Completion
	request := transport.SendRequest{
		Op: transport.OpWrite, Remote: peer.Remote, Local: []transport.Piece{{Region: region, Bytes: transferBytes}},
	}
	for i := byte(1); ; i++ {
		m.Bytes()[int(i)*251]++
		_, _ = e.PostSend([]transport.SendRequest{request})
		_, err := tr.Poll(done[:])
		require.NoError(t, err)
	}
}
