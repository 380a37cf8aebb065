package tcp

import (
	"fmt"
	"io"
	"net"
	"sort"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// BenchmarkWriteBesidePlainCopy writes over an endpoint, and copies the same
// bytes over as many plain sockets, in turn, over the loopback device. It
// reports GB/s of both and the median of their ratios, and of the processor time
// that both took, which says more on a busy machine.
func BenchmarkWriteBesidePlainCopy(b *testing.B) {
	for _, protection := range []wire.Protection{wire.ProtectDigest, wire.ProtectEncrypt} {
		for _, sockets := range []int{1, 4} {
			for _, size := range []int{64 << 10, 1 << 20, 16 << 20} {
				b.Run(fmt.Sprintf("%v/sockets=%d/bytes=%d", protection, sockets, size), func(b *testing.B) {
					benchmarkWrite(b, protection, sockets, size, 0)
				})
			}
		}
	}
}

// BenchmarkWriteOverSlowerLink is the same where the kernel sends no faster than
// a link of 5, 10 or 20 Gb/s.
func BenchmarkWriteOverSlowerLink(b *testing.B) {
	for _, gigabits := range []int{5, 10, 20} {
		b.Run(fmt.Sprintf("Gbps=%d", gigabits), func(b *testing.B) {
			benchmarkWrite(b, wire.ProtectDigest, 1, 1<<20, gigabits*1e9/8)
		})
	}
}

// pace bounds the bytes per second of a socket; 0 does not.
func pace(t testing.TB, fd uintptr, bytesPerSecond int) {
	const maxPacingRate = 47 // SO_MAX_PACING_RATE
	if bytesPerSecond > 0 {
		require.NoError(t, syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, maxPacingRate, bytesPerSecond))
	}
}

func benchmarkWrite(b *testing.B, protection wire.Protection, sockets, size, rate int) {
	p := newPair(b, func(_ int, c *Config) {
		c.Protection, c.NumSockets = protection, sockets
	})
	p.memory(size, transport.AccessWrite)
	p.connect(16, 16)
	plain := newPlain(b, sockets, p.mems[0].Bytes(), p.mems[1].Bytes())
	for i := range sockets {
		pace(b, uintptr(p.ep[0].(*endpoint).conns[i].fd.Raw()), rate)
		raw, err := plain.out[i].(*net.TCPConn).SyscallConn()
		require.NoError(b, err)
		require.NoError(b, raw.Control(func(fd uintptr) { pace(b, fd, rate) }))
	}
	num := max(4, (256<<20)/size)
	b.SetBytes(int64(num * size))
	stop := p.serve(1)
	p.writeMany(num) // warm
	plain.copyMany(num)
	var ratios, ours, theirs, work []float64
	for b.Loop() {
		before := cpuTime()
		mine := p.writeMany(num)
		between := cpuTime()
		copied := plain.copyMany(num)
		work = append(work, (between-before).Seconds()/(cpuTime()-between).Seconds())
		ratios = append(ratios, copied.Seconds()/mine.Seconds())
		ours = append(ours, float64(num*size)/1e9/mine.Seconds())
		theirs = append(theirs, float64(num*size)/1e9/copied.Seconds())
	}
	b.ReportMetric(median(ratios), "of-plain")
	b.ReportMetric(median(work), "CPU-of-plain")
	b.ReportMetric(median(ours), "GB/s")
	b.ReportMetric(median(theirs), "plain-GB/s")
	stop()
	plain.close()
	p.close()
}

// cpuTime is what this process has used, user and system, in all threads.
func cpuTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func median(x []float64) float64 {
	sort.Float64s(x)
	return x[len(x)/2]
}

// serve lets a side do its part on a goroutine of its own.
func (p *pair) serve(i int) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var done [64]transport.Completion
		for {
			select {
			case <-quit:
				return
			default:
			}
			if p.tr[i].Wait(time.Second) != nil {
				return
			}
			_, _ = p.tr[i].Poll(done[:])
		}
	}()
	return func() {
		close(quit)
		p.tr[i].Wake()
		<-ended
	}
}

// writeMany keeps a few writes under way and returns how long all took.
func (p *pair) writeMany(num int) time.Duration {
	var done [16]transport.Completion
	req := []transport.SendRequest{{Op: transport.OpWrite, Local: whole(p.mems[0]), Remote: p.mems[1].Remote()}}
	start := time.Now()
	for posted, ended := 0, 0; ended < num; {
		for posted < num && posted-ended < 8 {
			n, err := p.ep[0].PostSend(req)
			require.NoError(p.t, err)
			posted += n
		}
		require.NoError(p.t, p.tr[0].Wait(time.Second))
		n, err := p.tr[0].Poll(done[:])
		require.NoError(p.t, err)
		for _, c := range done[:n] {
			require.Equal(p.t, transport.StatusOK, c.Status)
		}
		ended += n
	}
	return time.Since(start)
}

// plain is what a program without this package would do: a goroutine per
// socket that writes, and one that reads.
type plain struct {
	out, in  []net.Conn
	src, dst []byte
}

func newPlain(t testing.TB, sockets int, src, dst []byte) *plain {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	x := &plain{src: src, dst: dst}
	for range sockets {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		s, err := l.Accept()
		require.NoError(t, err)
		x.out, x.in = append(x.out, c), append(x.in, s)
	}
	return x
}

func (x *plain) copyMany(num int) time.Duration {
	start := time.Now()
	ended := make(chan error, len(x.in))
	part := len(x.src) / len(x.out)
	for i := range x.out {
		src, dst := x.src[i*part:][:part], x.dst[i*part:][:part]
		go func() {
			for range num {
				_, _ = x.out[i].Write(src)
			}
		}()
		go func() {
			var err error
			for range num {
				_, err = io.ReadFull(x.in[i], dst)
			}
			ended <- err
		}()
	}
	for range x.in {
		<-ended
	}
	return time.Since(start)
}

func (x *plain) close() {
	for i := range x.out {
		_ = x.out[i].Close()
		_ = x.in[i].Close()
	}
}
