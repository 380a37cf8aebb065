package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"syscall"
	"testing"
	"time"
)

var benchSizes = []int{64, 4 << 10, 64 << 10, 1 << 20, 16 << 20}

// BenchmarkProtect is what protecting a payload costs one core on each side:
// nothing, the candidates for a digest, and encryption.
func BenchmarkProtect(b *testing.B) {
	for _, size := range benchSizes {
		payload := noise(1, size)
		sum := make([]byte, 0, 32)
		plain := sha256.New()
		keyed := hmac.New(sha256.New, payload[:32])
		c, s := sessions(b)
		e, d := sessions(b, func(c *Config) { c.Protection = ProtectEncrypt })
		digest, list := s.NewDigest(), [][]byte{payload}
		enc, dec := e.NewEncryptor(), d.NewDecryptor()
		head := Head{Code: 1}
		room := make([]byte, 0, EncryptedBytes(int64(size)))
		into := [][]byte{make([]byte, size)}
		run := func(name string, f func()) {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				begin := cpuTime(b)
				for b.Loop() {
					f()
				}
				b.ReportMetric(float64(size)*float64(b.N)/float64(cpuTime(b)-begin), "GB/cpu-s")
			})
		}
		run("copy", func() { copy(into[0], payload) })
		run("sha256", func() { plain.Reset(); plain.Write(payload); sum = plain.Sum(sum[:0]) })
		run("hmac", func() { keyed.Reset(); keyed.Write(payload); sum = keyed.Sum(sum[:0]) })
		run("digest", func() { c.sealer.of(1, int64(size), list) })
		run("digest-in-pieces", func() {
			digest.begin(1, int64(size))
			for p := payload; len(p) > 0; {
				n := min(len(p), 37_000)
				digest.Write(p[:n])
				p = p[n:]
			}
			digest.finish()
		})
		run("encrypt", func() {
			head.Seq++
			head.PayloadBytes = int64(size)
			enc.Begin(&head, list)
			room = enc.Next(room[:0])
		})
		run("decrypt", func() {
			_ = dec.Begin(&head, into)
			_ = dec.Write(room)
			if dec.Check() != nil {
				b.Fatal("not genuine")
			}
		})
	}
}

// cpuTime is what this process has used of processors, so that a busy machine
// matters less.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkFrame is what a message without payload costs.
func BenchmarkFrame(b *testing.B) {
	c, s := sessions(b)
	var buf [MaxFrameBytes]byte
	b.ReportAllocs()
	for b.Loop() {
		head := Head{Code: 1}
		frame, _ := c.Seal(buf[:0], &head)
		if _, err := s.OpenHead(frame); err != nil {
			b.Fatal(err)
		}
	}
}
