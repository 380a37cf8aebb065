package blocks

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/client"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/wire"
)

// process is a server process, from outside.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     *json.Encoder
	lines  chan string // closed when it has ended
	stderr output
	addr   string
}

// output is written by exec's goroutine.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// begin starts a server process; await tells when it serves.
func begin(t *testing.T, l life) *process {
	text, err := json.Marshal(l)
	require.NoError(t, err)
	p := &process{t: t, cmd: exec.Command(os.Args[0]), lines: make(chan string, 16)}
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	in, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	p.in = json.NewEncoder(in)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(p.kill)
	return p
}

const testTimeout = time.Minute

// line is the next line of the process, or false if it has ended.
func (p *process) line() (string, bool) {
	select {
	case line, is := <-p.lines:
		return line, is
	case <-time.After(testTimeout):
		require.Failf(p.t, "a server hangs", "%s", p.stderr.String())
		return "", false
	}
}

// await reports whether the server serves.
func (p *process) await() bool {
	line, is := p.line()
	p.addr = strings.TrimPrefix(line, "ready ")
	return is
}

func (p *process) arm(t trouble) {
	if p.in.Encode(t) == nil {
		p.line()
	}
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill kills the process, unless it has ended, and waits for it.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		p.signal(syscall.SIGKILL)
		_ = p.cmd.Wait()
	}
}

// dial connects a client, for which that brings blocks. A server that is gone stays so for it.
func (p *process) dial(carrier client.Carrier) *client.Client {
	keys, err := wire.NewKeyring(func() ([]byte, error) { return []byte(keyText), nil })
	require.NoError(p.t, err)
	c, err := client.Open(client.Config{
		Servers: []string{p.addr}, Namespace: message.Namespace{Model: "blocks"}, Keys: keys,
		Timeout: testTimeout, ProbeMin: time.Hour, ProbeMax: time.Hour, Carrier: carrier,
	})
	require.NoError(p.t, err)
	return c
}

// stats are those of the server's engine.
func (p *process) stats(c *client.Client) (st store.Stats) {
	var said struct{ Store store.Stats }
	require.NoError(p.t, json.Unmarshal(c.Stats(0)[p.addr], &said))
	return said.Store
}
