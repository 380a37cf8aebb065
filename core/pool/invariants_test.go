package pool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// provider makes contexts and counts them, outside of the code under test.
type provider struct {
	live, most, made, destroyed atomic.Int64
	failEvery                   int64
	slow                        time.Duration
}

type context struct {
	id        int64
	destroyed atomic.Bool
	held      atomic.Bool
}

var errNoMemory = errors.New("no memory")

func (p *provider) make() (*context, error) {
	n := p.live.Add(1)
	for {
		most := p.most.Load()
		if n <= most || p.most.CompareAndSwap(most, n) {
			break
		}
	}
	time.Sleep(p.slow)
	id := p.made.Add(1)
	if p.failEvery > 0 && id%p.failEvery == 0 {
		p.live.Add(-1)
		return nil, errNoMemory
	}
	return &context{id: id}, nil
}

func (p *provider) destroy(c *context) {
	if c.destroyed.Swap(true) {
		panic(fmt.Sprintf("context %d destroyed twice", c.id))
	}
	p.destroyed.Add(1)
	p.live.Add(-1)
}

func seedOf(t testing.TB) uint64 {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("MOEWIRE_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("MOEWIRE_TEST_SEED=%d", seed)
	return seed
}

func poolOf(p *provider, size int, clean bool) *Pool[*context] {
	cfg := Config[*context]{Cap: size, Make: p.make, Destroy: p.destroy}
	if clean {
		cfg.Clean = func(*context) error { return nil }
	}
	pool, err := New(cfg)
	if err != nil {
		panic(err)
	}
	return pool
}

// checkStorm (SC1, SC3, SC4, SC5): many getters, failing makes, waits, double
// releases: never more values than the cap, no caller waits for ever, no value is
// leased to two, and nothing is left at the end.
func checkStorm(seed uint64, clean bool) error {
	const size, getters, rounds = 3, 16, 40
	p := &provider{failEvery: 7, slow: 20 * time.Microsecond}
	pool := poolOf(p, size, clean)
	problems := make(chan error, 1024)
	report := func(format string, args ...any) {
		select {
		case problems <- fmt.Errorf(format, args...):
		default:
		}
	}
	stop := drainInBackground(pool)
	var wg sync.WaitGroup
	for g := range getters {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(seed, uint64(g)))
			for range rounds {
				useOne(pool, rng, report)
			}
		}()
	}
	wg.Wait()
	stop()
	pool.Drain(size)
	pool.Close()
	if most := p.most.Load(); most > size {
		report("%d contexts at a time, cap %d", most, size)
	}
	if live := p.live.Load(); live != 0 {
		report("%d contexts live after close", live)
	}
	if s := pool.Stats(); s.Live != 0 || s.Leased != 0 || s.Queued != 0 {
		report("after close %+v", s)
	}
	select {
	case err := <-problems:
		return err
	default:
		return nil
	}
}

func useOne(pool *Pool[*context], rng *rand.Rand, report func(string, ...any)) {
	l, err := pool.Get()
	if errors.Is(err, ErrWouldBlock) && rng.IntN(2) == 0 {
		l, err = pool.Wait(time.Now().Add(5 * time.Second))
		if errors.Is(err, ErrWouldBlock) {
			report("a wait of 5 s was not served")
		}
	}
	if err != nil {
		return
	}
	if l.Value.held.Swap(true) {
		report("context %d is leased to two", l.Value.id)
	}
	if rng.IntN(3) == 0 {
		time.Sleep(time.Duration(rng.IntN(50)) * time.Microsecond)
	}
	l.Value.held.Store(false)
	if err := pool.Put(l); err != nil {
		report("put: %v", err)
	}
	if rng.IntN(4) == 0 {
		if err := pool.Put(l); !errors.Is(err, ErrReleased) {
			report("the second put of a lease: %v", err)
		}
	}
}

func drainInBackground(pool *Pool[*context]) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				if pool.Drain(2) == 0 {
					time.Sleep(10 * time.Microsecond)
				}
			}
		}
	}()
	return func() { close(done); <-ended }
}

// checkSteps (SC2, SC3, SC4, SC5, SC6) goes through the bound one call at a
// time, where each defect shows at once.
func checkSteps() error {
	p := &provider{failEvery: 3}
	pool := poolOf(p, 2, false)
	a, errA := pool.Get()
	b, errB := pool.Get()
	_, errC := pool.Get()
	if errA != nil || errB != nil || !errors.Is(errC, ErrWouldBlock) || pool.Stats().Capped != 1 {
		return fmt.Errorf("at the bound: %v, %v, %v, %+v", errA, errB, errC, pool.Stats())
	}
	if err := serveInOrder(pool, a, b); err != nil {
		return err
	}
	pool.Trim(0)
	if _, err := pool.Get(); !errors.Is(err, errNoMemory) { // the third one made
		return fmt.Errorf("a failing make: %v", err)
	}
	for range 2 {
		if _, err := pool.Get(); err != nil {
			return fmt.Errorf("after a failing make: %v, %+v", err, pool.Stats())
		}
	}
	if err := checkReserved(); err != nil {
		return err
	}
	return checkStalled()
}

// checkReserved (SC1): of callers that all come before anything is made, as
// many make as there are places.
func checkReserved() error {
	const size, callers = 2, 6
	making, refused, goOn := make(chan struct{}, callers), make(chan error, callers), make(chan struct{})
	pool, err := New(Config[int]{Cap: size, Make: func() (int, error) { making <- struct{}{}; <-goOn; return 0, nil }})
	if err != nil {
		return err
	}
	for range callers {
		go func() {
			if _, err := pool.Get(); err != nil {
				refused <- err
			}
		}()
	}
	numMaking := 0
	for numRefused := 0; numMaking+numRefused < callers; {
		select {
		case <-making:
			numMaking++
		case <-refused:
			numRefused++
		}
	}
	close(goOn)
	if numMaking != size {
		return fmt.Errorf("%d of %d callers make, %d may", numMaking, callers, size)
	}
	return nil
}

// serveInOrder: the first waiter is served first, before any later caller.
func serveInOrder(pool *Pool[*context], held ...Lease[*context]) error {
	served := make(chan int, 2)
	for i := range 2 {
		before := waiting(pool)
		go func() {
			l, err := pool.Wait(time.Now().Add(3 * time.Second))
			if err != nil {
				i = -1
			}
			served <- i
			if err == nil {
				pool.Put(l)
			}
		}()
		for waiting(pool) == before {
			time.Sleep(10 * time.Microsecond)
		}
	}
	pool.Put(held[0])
	if first := <-served; first != 0 {
		return fmt.Errorf("waiter %d was served first", first)
	}
	pool.Put(held[1])
	if second := <-served; second != 1 {
		return fmt.Errorf("waiter %d was served second", second)
	}
	if err := pool.Put(held[0]); !errors.Is(err, ErrReleased) {
		return fmt.Errorf("a second put: %v", err)
	}
	for pool.Stats().Leased > 0 {
		time.Sleep(10 * time.Microsecond)
	}
	return nil
}

func waiting(pool *Pool[*context]) int {
	pool.mu.Lock()
	defer pool.mu.Unlock()
	return len(pool.waiters)
}

// checkStalled (SC6): no call cleans what is released. Callers see would-block,
// and no more values are made; afterwards all goes on.
func checkStalled() error {
	p := &provider{}
	pool := poolOf(p, 4, true)
	gets := 0
	for range 100 {
		if l, err := pool.Get(); err == nil {
			gets++
			if err := pool.Put(l); err != nil {
				return err
			}
		}
	}
	if gets != 4 || p.most.Load() != 4 || pool.Stats().Queued != 4 || pool.Stats().Capped != 96 {
		return fmt.Errorf("stalled: %d gets, %d values, %+v", gets, p.most.Load(), pool.Stats())
	}
	for range 100 {
		pool.Drain(1)
		l, err := pool.Get()
		if err != nil {
			return fmt.Errorf("after the stall: %w", err)
		}
		pool.Put(l)
	}
	return nil
}

func TestInvariants(t *testing.T) {
	seed := seedOf(t)
	require.NoError(t, checkSteps())
	for i := range uint64(20) {
		require.NoError(t, checkStorm(seed+i, i%2 == 0))
	}
}

// TestInvariantsInBubble: the same under many seeds, in bubbles with a fake
// clock.
func TestInvariantsInBubble(t *testing.T) {
	seed := seedOf(t)
	for i := range testenv.NumSeeds(t, 1000) {
		synctest.Test(t, func(t *testing.T) {
			require.NoError(t, checkStorm(seed+i, i%2 == 0), "MOEWIRE_TEST_SEED=%d", seed+i)
		})
	}
}
