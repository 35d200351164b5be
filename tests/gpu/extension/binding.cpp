#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

void rms_norm(const float*, const float*, float*, int rows, int size, float eps, cudaStream_t);
const char* matmul(const float*, const float*, float*, int m, int n, int k, cudaStream_t);
#ifdef WITHOUT_A_PART
void nowhere();  // as in a library that was linked without one of its files
#endif

static at::Tensor of_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  auto out = at::empty_like(x);
  rms_norm(x.data_ptr<float>(), weight.data_ptr<float>(), out.data_ptr<float>(), x.size(0), x.size(1), eps,
           c10::cuda::getCurrentCUDAStream());
  return out;
}

static at::Tensor of_matmul(const at::Tensor& a, const at::Tensor& b) {
  auto out = at::empty({a.size(0), b.size(1)}, a.options());
  const char* error = matmul(a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), a.size(0), b.size(1),
                             a.size(1), c10::cuda::getCurrentCUDAStream());
  TORCH_CHECK(error == nullptr, "matmul: ", error);
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
#ifdef WITHOUT_A_PART
  module.def("nowhere", &nowhere);
#endif
  module.def("rms_norm", &of_rms_norm);
  module.def("matmul", &of_matmul);
}
