package link

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport/fake"
)

// post carries reconnect messages from one side of a link to the other, in order, each
// after some time; at times it takes none.
type post struct {
	mu   sync.Mutex
	rng  *rand.Rand
	most time.Duration
	box  chan []byte
	lost bool // from now on
}

func newPost(t *testing.T, seed uint64, most time.Duration, to *Link) *post {
	p := &post{rng: rand.New(rand.NewPCG(seed, 99)), most: most, box: make(chan []byte, 1000)}
	ended := make(chan bool)
	go func() {
		defer close(ended)
		for b := range p.box {
			time.Sleep(p.delay())
			to.Deliver(b)
		}
	}()
	t.Cleanup(func() {
		p.lose()
		close(p.box)
		<-ended
	})
	return p
}

// lose makes everything that is said from now on never arrive.
func (p *post) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = true
}

func (p *post) delay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.rng.Int64N(int64(p.most) + 1))
}

func (p *post) say(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.lost:
		return true // it never arrives
	case p.most > 0 && p.rng.IntN(4) == 0:
		return false
	}
	p.box <- append([]byte(nil), b...)
	return true
}

const within = 10 * time.Second

// reconnectable is a pair with a link that is reconnected.
func reconnectable(t *testing.T, net *fake.Network, cfg Config, seed uint64, slow time.Duration) (a, b *end, posts [2]*post) {
	a, b = pair(t, net, cfg)
	posts = [2]*post{newPost(t, seed, slow, b.link), newPost(t, seed+1, slow, a.link)}
	a.link.Reconnect(Reconnecting{Within: within, Send: posts[0].say})
	b.link.Reconnect(Reconnecting{Within: within, Send: posts[1].say})
	return a, b, posts
}

// patient makes no side give up, however unlucky the seed is.
func patient(ends ...*end) {
	for _, e := range ends {
		e.link.reconnector.mu.Lock()
		e.link.reconnector.cfg.Within, e.link.reconnector.cfg.Tries = time.Hour, 1<<20
		e.link.reconnector.mu.Unlock()
	}
}

// sound: both sides are up, and nothing is left to be said.
func sound(t *testing.T, a, b *end) {
	for _, e := range []*end{a, b} {
		eventually(t, func() bool { return !e.link.Broken() })
		require.NoError(t, e.link.Err())
	}
}
