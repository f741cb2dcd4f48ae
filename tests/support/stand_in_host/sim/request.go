package sim

// TokenID is a token of a prompt or an answer.
type TokenID int32

// Request is one inference request.
type Request struct {
	ID            string
	ArrivalTime   int64 // us
	InputTokens   []TokenID
	OutputTokens  []TokenID
	ProgressIndex int64
	NumNewTokens  int
	itl           []int64
	firstToken    int64
	computed      int64
}

// InputLen is the length of the prompt in tokens.
func (r *Request) InputLen() int64 { return int64(len(r.InputTokens)) }

// LatencyModel estimates times in microseconds.
type LatencyModel interface {
	StepTime(batch []*Request) int64
	QueueingTime(req *Request) int64
	OutputTokenProcessingTime() int64
	PostDecodeFixedOverhead() int64
}

// AdapterCost is the factor, at least 1, by which the adapters of a batch lengthen its step.
type AdapterCost interface {
	StepOverheadFactor(batch []*Request) float64
}

// NewLatencyModelFunc makes a latency model; package latency sets it.
var NewLatencyModelFunc func(coeffs LatencyCoeffs, hw ModelHardwareConfig) (LatencyModel, error)
