package testenv

import (
	"bufio"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Process is a child process of a test, which says lines. For one goroutine.
type Process struct {
	*exec.Cmd
	In   io.Writer // its standard input, which ends with this process at the latest
	Said []string  // the lines that were read

	t     testing.TB
	limit time.Duration
	lines chan string
}

// maxUnread is how many lines a process may say before it waits for a reader.
const maxUnread = 10_000

// StartProcess starts a command. No wait for it lasts longer than the limit. When the test
// ends, the process is killed; if the test has failed, its log has what the process said.
func StartProcess(t testing.TB, cmd *exec.Cmd, limit time.Duration) *Process {
	t.Helper()
	p := &Process{Cmd: cmd, t: t, limit: limit, lines: make(chan string, maxUnread)}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.In, cmd.Stderr = in, cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.follow(out)
	t.Cleanup(p.end)
	return p
}

func (p *Process) follow(out io.Reader) {
	defer close(p.lines)
	for s := bufio.NewScanner(out); s.Scan(); {
		p.lines <- s.Text()
	}
}

// Await reads lines up to one that begins so, and returns the rest of it.
func (p *Process) Await(prefix string) string {
	p.t.Helper()
	for limit := time.After(p.limit); ; {
		line, ok := p.read(limit, prefix)
		if !ok {
			p.t.Fatalf("%v ended before it said %q", p.Args, prefix)
		}
		if rest, is := strings.CutPrefix(line, prefix); is {
			return strings.TrimSpace(rest)
		}
	}
}

// Wait reads all that the process still says, and returns how it has ended.
func (p *Process) Wait() error {
	p.t.Helper()
	for limit := time.After(p.limit); ; {
		if _, ok := p.read(limit, "the end"); !ok {
			return p.Cmd.Wait()
		}
	}
}

// read returns the next line; not ok: there is none any more.
func (p *Process) read(limit <-chan time.Time, what string) (line string, ok bool) {
	p.t.Helper()
	select {
	case line, ok = <-p.lines:
		if ok {
			p.Said = append(p.Said, line)
		}
	case <-limit:
		p.t.Fatalf("%v has not come to %q in %v", p.Args, what, p.limit)
	}
	return line, ok
}

func (p *Process) end() {
	_ = p.Process.Kill()
	for line := range p.lines {
		p.Said = append(p.Said, line)
	}
	_ = p.Cmd.Wait() // again, perhaps
	if p.t.Failed() {
		p.t.Logf("process %d:\n%s", p.Process.Pid, strings.Join(p.Said, "\n"))
	}
}
