package sim

import (
	"container/heap"
	"fmt"
	"sort"
)

// KVStore knows how many tokens the KV cache has room for.
type KVStore interface {
	CapacityTokens() int64
}

// Metrics are the times of requests by ID, in microseconds.
type Metrics struct {
	RequestTTFTs map[string]float64
	RequestE2Es  map[string]float64
}

// Simulator runs the requests of one instance whose KV cache has room for them all.
type Simulator struct {
	Metrics  *Metrics
	cfg      SimConfig
	model    LatencyModel
	requests []*Request
}

// NewSimulator makes a simulator of one instance.
func NewSimulator(cfg SimConfig, store KVStore, model LatencyModel) (*Simulator, error) {
	if store.CapacityTokens() <= 0 || cfg.MaxNumSeqs <= 0 || cfg.MaxNumBatchedTokens <= 0 {
		return nil, fmt.Errorf("simulator: no room for requests")
	}
	metrics := &Metrics{RequestTTFTs: map[string]float64{}, RequestE2Es: map[string]float64{}}
	return &Simulator{Metrics: metrics, cfg: cfg, model: model}, nil
}

// InjectArrival adds a request.
func (s *Simulator) InjectArrival(req *Request) { s.requests = append(s.requests, req) }

// event is a step, or a request that reaches the queue; of those at one time, requests come first.
type event struct {
	time   int64
	queued *Request
	order  int
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if e[i].time != e[j].time {
		return e[i].time < e[j].time
	}
	if (e[i].queued == nil) != (e[j].queued == nil) {
		return e[i].queued != nil
	}
	return e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// Run simulates the requests to the end, or to the horizon.
func (s *Simulator) Run() {
	var todo events
	var waiting, running []*Request
	pending := false
	sort.SliceStable(s.requests, func(i, j int) bool { return s.requests[i].ArrivalTime < s.requests[j].ArrivalTime })
	for i, req := range s.requests {
		heap.Push(&todo, event{req.ArrivalTime + s.model.QueueingTime(req), req, i})
	}
	for len(todo) > 0 {
		next := heap.Pop(&todo).(event)
		if next.time > s.cfg.Horizon {
			return
		}
		now := next.time
		if next.queued != nil {
			waiting = append(waiting, next.queued)
			if !pending {
				heap.Push(&todo, event{time: now})
				pending = true
			}
			continue
		}
		var step int64
		waiting, running, step = s.step(now, waiting, running)
		pending = len(waiting)+len(running) > 0
		if pending {
			heap.Push(&todo, event{time: now + step})
		}
	}
}

// step runs one step from now; it returns the queue, the batch, and how long the step takes.
func (s *Simulator) step(now int64, waiting, running []*Request) ([]*Request, []*Request, int64) {
	left := s.cfg.MaxNumBatchedTokens
	for int64(len(running)) < s.cfg.MaxNumSeqs && len(waiting) > 0 {
		running, waiting = append(running, waiting[0]), waiting[1:]
	}
	var batch []*Request
	admitted := len(running)
	for i, req := range running {
		want := max(req.InputLen()-req.ProgressIndex, 1)
		req.NumNewTokens = int(min(want, left))
		left -= int64(req.NumNewTokens)
		if req.NumNewTokens > 0 {
			batch = append(batch, req)
		} else if req.ProgressIndex == 0 && i < admitted {
			admitted = i // no budget is left for it: it waits on
		}
	}
	waiting = append(append([]*Request{}, running[admitted:]...), waiting...)
	running = running[:admitted]
	step, token := max(1, s.model.StepTime(batch)), s.model.OutputTokenProcessingTime()
	var stay []*Request
	for _, req := range running {
		if req.ProgressIndex < req.InputLen() {
			req.ProgressIndex += int64(req.NumNewTokens)
			if req.ProgressIndex == req.InputLen() {
				req.firstToken = now + step + token - req.ArrivalTime
				s.Metrics.RequestTTFTs[req.ID] = float64(req.firstToken)
			}
		} else {
			req.ProgressIndex++
			req.itl = append(req.itl, step+token)
		}
		if req.ProgressIndex < req.InputLen()+max(int64(len(req.OutputTokens)), 1)-1 {
			stay = append(stay, req)
			continue
		}
		total := req.firstToken + s.model.PostDecodeFixedOverhead()
		for _, us := range req.itl {
			total += us
		}
		s.Metrics.RequestE2Es[req.ID] = float64(total)
	}
	return waiting, stay, step
}
