package sim

// ModelConfig is the architecture of a model.
type ModelConfig struct {
	NumLayers              int
	HiddenDim              int
	NumHeads               int
	NumKVHeads             int
	VocabSize              int
	BytesPerParam          float64
	WeightBytesPerParam    float64 // of quantised weights; 0: as BytesPerParam
	IntermediateDim        int
	NumLocalExperts        int
	NumExpertsPerTok       int
	MoEExpertFFNDim        int // 0: IntermediateDim
	SharedExpertFFNDim     int
	InterleaveMoELayerStep int // 0: all layers alike, 1: every second one has experts
	DenseIntermediateDim   int
	HiddenAct              string
	HeadDim                int // 0: HiddenDim / NumHeads
	KVLoraRank             int
	QKRopeHeadDim          int
	FirstKDenseReplace     int
	KVBearingLayers        int // 0: all
}

// IsMoE tells whether the model has experts.
func (m ModelConfig) IsMoE() bool { return m.NumLocalExperts > 1 }

// HardwareCalib is a GPU of the hardware table.
type HardwareCalib struct {
	TFlopsPeak float64
	TFlopsFP8  float64
	BwPeakTBs  float64
	MfuPrefill float64
	MfuDecode  float64
	MemoryGiB  float64
}
