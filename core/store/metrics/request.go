package metrics

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// ContentType is that of the text.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

const (
	mostHead   = 8 << 10 // bytes of a request's head
	mostLinger = 1 << 20
)

var (
	errTooLong   = errors.New("the head of the request is too long")
	errMalformed = errors.New("no request of HTTP/1")
)

// readRequest reads the head of a request, and returns its method and the path that it asks for.
func readRequest(in io.Reader) (method, path string, err error) {
	limited := &io.LimitedReader{R: in, N: mostHead}
	lines, first := bufio.NewReader(limited), ""
	for n := 0; ; n++ {
		line, err := lines.ReadString('\n')
		if err != nil && limited.N == 0 {
			return "", "", errTooLong
		}
		if err != nil {
			return "", "", err
		}
		if line = strings.TrimRight(line, "\r\n"); line == "" && n > 0 {
			break
		}
		if n == 0 {
			first = line
		}
	}
	fields := strings.Split(first, " ")
	if len(fields) != 3 || !strings.HasPrefix(fields[2], "HTTP/1.") {
		return "", "", errMalformed
	}
	path, _, _ = strings.Cut(fields[1], "?")
	return fields[0], path, nil
}

// answer answers one request, and says that the connection ends.
func (l *Listener) answer(c net.Conn) {
	method, path, err := readRequest(c)
	switch {
	case errors.Is(err, errTooLong):
		say(c, "431 Request Header Fields Too Large", "", nil, true)
		linger(c)
	case errors.Is(err, errMalformed):
		say(c, "400 Bad Request", "", nil, true)
	case err != nil: // it says nothing any more
	case path != "/metrics":
		say(c, "404 Not Found", "", nil, true)
	case method != "GET" && method != "HEAD":
		say(c, "405 Method Not Allowed", "Allow: GET, HEAD\r\n", nil, true)
		linger(c)
	default:
		say(c, "200 OK", "", l.now(), method == "GET")
	}
}

// linger reads what a client still sends: a connection that is closed before that loses the answer.
func linger(c net.Conn) {
	if half, is := c.(interface{ CloseWrite() error }); is && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c, mostLinger)
	}
}

func say(c net.Conn, status, header string, body []byte, withBody bool) {
	head := fmt.Sprintf("HTTP/1.1 %s\r\n%sContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n",
		status, header, ContentType, len(body))
	if !withBody {
		body = nil
	}
	buffers := net.Buffers{[]byte(head), body}
	_, _ = buffers.WriteTo(c)
}
