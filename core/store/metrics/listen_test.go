package metrics

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func listen(t *testing.T) *Listener {
	t.Helper()
	l, err := Listen("127.0.0.1:0", func() []byte { return []byte("moewire_store_x 1\n") }, func(line string) { t.Error(line) })
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

func TestListen(t *testing.T) {
	l := listen(t)
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/metrics", 200},
		{"HEAD", "/metrics", 200},
		{"POST", "/metrics", 405},
		{"DELETE", "/metrics", 405},
		{"GET", "/", 404},
		{"GET", "/metrics/", 404},
		{"GET", "/metrics?x=1", 200},
		{"GET", "/debug/pprof/", 404},
		{"GET", "/../metrics", 404},
	} {
		request, err := http.NewRequest(c.method, "http://"+l.Addr().String()+c.path, nil)
		require.NoError(t, err)
		client := &http.Client{
			Timeout:       20 * time.Second,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
		reply, err := client.Do(request)
		require.NoError(t, err)
		body, err := io.ReadAll(reply.Body)
		require.NoError(t, err)
		_ = reply.Body.Close()
		client.CloseIdleConnections()
		if c.path == "/../metrics" { // a redirect to what it means
			require.NotEqual(t, 200, reply.StatusCode)
			continue
		}
		require.Equal(t, c.status, reply.StatusCode, c)
		if c.status == 200 {
			require.Equal(t, ContentType, reply.Header.Get("Content-Type"))
			require.Equal(t, c.method == "GET", string(body) == "moewire_store_x 1\n")
		}
	}
}

// A connection more than MaxConns is closed at once; when another one has ended there is room again.
func TestConnectionsAreBounded(t *testing.T) {
	l := listen(t)
	var idle []net.Conn
	for n := range MaxConns {
		idle = append(idle, dial(t, l))
		require.Eventually(t, func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.conns) == n+1 }, 20*time.Second, time.Millisecond)
	}
	require.False(t, answers(dial(t, l)))
	require.NoError(t, idle[0].Close())
	require.Eventually(t, func() bool {
		c := dial(t, l)
		defer func() { _ = c.Close() }()
		return answers(c)
	}, 20*time.Second, time.Millisecond)
}

func dial(t *testing.T, l *Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	return c
}

func answers(c net.Conn) bool {
	if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return false
	}
	reply, err := http.ReadResponse(bufio.NewReader(c), nil)
	return err == nil && reply.StatusCode == 200
}

func TestLongRequest(t *testing.T) {
	c := dial(t, listen(t))
	_, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\nA: "+strings.Repeat("a", 64<<10)+"\r\n\r\n")
	if err == nil {
		reply, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, reply.StatusCode)
	}
}

// Close ends connections on which nothing was asked, and waits for what it has begun.
func TestClose(t *testing.T) {
	l := listen(t)
	c := dial(t, l)
	l.Close()
	l.Close()
	_, err := io.ReadAll(c)
	require.NotErrorIs(t, err, io.ErrNoProgress)
	_, err = net.Dial("tcp", l.Addr().String())
	require.Error(t, err)
	_, err = Listen("127.0.0.1:99999", nil, nil)
	require.ErrorContains(t, err, "metrics: ")
}

// A request with a text that panics ends its connection, and nothing else.
func TestPanic(t *testing.T) {
	first, said := true, make(chan string, 1)
	l, err := Listen("127.0.0.1:0", func() []byte {
		if first {
			first = false
			panic("first")
		}
		return nil
	}, func(line string) { said <- line })
	require.NoError(t, err)
	defer l.Close()
	require.False(t, answers(dial(t, l)))
	require.Contains(t, <-said, "first")
	require.True(t, answers(dial(t, l)))
}

// What is no request of HTTP/1 is told so.
func TestMalformed(t *testing.T) {
	for _, text := range []string{"GET /metrics\r\n\r\n", "GET /metrics HTTP/2\r\n\r\n", "\r\n\r\n", "GET  /metrics HTTP/1.1\n\n", "\x16\x03\x01\n\n"} {
		c := dial(t, listen(t))
		_, err := io.WriteString(c, text)
		require.NoError(t, err)
		reply, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		require.Equal(t, 400, reply.StatusCode, "%q", text)
	}
}

// FuzzRequest: what is taken for a request is one for net/http, too, with the same path.
func FuzzRequest(f *testing.F) {
	f.Add([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("HEAD /a?b=c HTTP/1.0\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		method, path, err := readRequest(bytes.NewReader(data))
		if err != nil || path != "/metrics" || method != "GET" {
			return
		}
		if request, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(data))); err == nil {
			require.Equal(t, "/metrics", request.URL.Path)
			require.Equal(t, "GET", request.Method)
		}
	})
}
