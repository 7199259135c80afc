// A program that embeds ort-train, against the installed library: consumer MODELS_FOLDER OUTPUT_FOLDER.
//
// Trains two models in two threads with two budgets, stops one of them from outside, trains on samples of its own, and catches an Error;
// the library itself prints nothing.

#include <fcntl.h>
#include <ort_train/ort_train.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "consumer: not so: %s\n", what);
  std::exit(1);
}

// Sends stdout and stderr to a file while it lives.
class Silence {
 public:
  explicit Silence(const std::string& path) : file_(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600)), out_(dup(1)), err_(dup(2)) {
    std::fflush(nullptr);
    dup2(file_, 1);
    dup2(file_, 2);
  }
  ~Silence() {
    std::fflush(nullptr);
    dup2(out_, 1);
    dup2(err_, 2);
    for (int descriptor : {file_, out_, err_}) close(descriptor);
  }
  off_t written() const {
    std::fflush(nullptr);
    struct stat status {};
    fstat(file_, &status);
    return status.st_size;
  }

 private:
  int file_, out_, err_;
};

// Samples of the program itself: rows of tokens in memory.
class TokenRows : public ort_train::SampleSource {
 public:
  std::vector<ort_train::SampleField> fields() const override { return {{.name = "input_ids", .type = "uint16", .shape = {32}}}; }
  int64_t size() const override { return kRows; }
  void read(size_t, int64_t sample, std::span<std::byte> to) override {
    std::memcpy(to.data(), tokens_.data() + sample * kLength, to.size());
  }
  // The same tokens as a file.
  void write(const std::string& path) const {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(tokens_.data()), static_cast<std::streamsize>(2 * tokens_.size()));
  }

 private:
  static constexpr int64_t kRows = 100, kLength = 32;
  static std::vector<uint16_t> tokens() {
    std::vector<uint16_t> result;
    for (int i = 0; i < kRows * kLength; ++i) result.push_back(static_cast<uint16_t>(i * i % 65));
    return result;
  }
  const std::vector<uint16_t> tokens_ = tokens();
};

ort_train::Options job(const std::string& models, const std::string& out) {
  ort_train::Options options{.model = models + "/char-gpt.onnx", .data = models + "/tinyshakespeare.txt", .task = "causal-lm"};
  options.batch_size = 4;
  options.seq_length = 32;
  options.learning_rate = 1e-3;
  options.threads = 2;
  options.output_dir = out;
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  expect(argc == 3, "two arguments");
  const std::string models = argv[1], out = argv[2];
  ort_train::Summary alone, first, second, own, from_file;
  double last_loss = 0;
  std::string text, refusal;
  int64_t minimum = 0;
  off_t printed = 0;
  {
    Silence silence(out + "/printed");

    // An Error has a code and a sentence.
    ort_train::Options options = job(models, out + "/refused");
    options.budget = 1'000'000;
    try {
      ort_train::Trainer trainer(options);
    } catch (const ort_train::Error& error) {
      if (error.code() == ort_train::ErrorCode::budget) refusal = error.what();
    }

    // One by itself, to compare with.
    options = job(models, out + "/alone");
    options.max_steps = 20;
    {
      ort_train::Trainer trainer(options);
      minimum = trainer.plan().minimum_budget;
      alone = trainer.train();
    }

    // The same beside another one, each with a budget of its own.
    std::atomic<int64_t> steps{0};
    std::thread other([&] {
      ort_train::Options endless = job(models, out + "/second");
      endless.max_steps = 1'000'000;
      endless.batch_size = 2;
      endless.budget = 300'000'000;
      std::atomic<ort_train::Trainer*> self{nullptr};
      ort_train::Trainer trainer(endless, {.on_step = [&](const ort_train::StepReport& report) { steps = report.step; }});
      self = &trainer;
      std::thread stopper([&] {
        while (steps < 5) std::this_thread::yield();
        self.load()->request_stop();
      });
      second = trainer.train();
      stopper.join();
    });
    options.output_dir = out + "/first";
    options.budget = minimum;
    {
      ort_train::Trainer trainer(options, {.on_step = [&](const ort_train::StepReport& report) { last_loss = report.loss; }});
      first = trainer.train();
      text = trainer.sample("ROMEO:", 40, 0.8, 1);
    }
    other.join();

    // On samples of its own, and on the same from a file.
    const auto rows = std::make_shared<TokenRows>();
    rows->write(out + "/tokens.bin");
    options = job(models, out + "/own");
    options.data.clear();
    options.train_samples = rows;
    options.max_steps = 5;
    own = ort_train::Trainer(options).train();
    options = job(models, out + "/file");
    options.data = out + "/tokens.bin";
    options.max_steps = 5;
    from_file = ort_train::Trainer(options).train();

    // Outputs for given inputs, from the model that was just written.
    options = job(models, out + "/predict");
    options.predict_batch_size = 2;
    std::string copy = "cp '" + models + "/char-gpt.vocab.json' '" + out + "/first/model.vocab.json'";
    expect(std::system(copy.c_str()) == 0, "the vocabulary can be copied");
    options.model = out + "/first/model.onnx";
    ort_train::Trainer trained(options);
    const auto outputs = trained.predict({{"input_ids", std::vector<int64_t>(2 * 32, 1)}}, {});
    expect(outputs.at("logits").size() == 2 * 32 * 65, "logits of the right size");
    for (float value : outputs.at("logits")) expect(std::isfinite(value), "finite logits");
    printed = silence.written();
  }
  expect(refusal.find("smallest budget") != std::string::npos, "a budget of 1 MB is refused with the smallest that would do");
  expect(printed == 0, "the library prints nothing");
  expect(first.steps == 20 && !first.stopped, "the first one finished");
  expect(second.stopped && second.steps >= 5 && second.steps < 1'000'000, "the second one was stopped");
  expect(first.weights_hash == alone.weights_hash, "a neighbour and a budget change no bit");
  expect(own.steps == 5 && own.weights_hash == from_file.weights_hash, "samples of the program's own train as those of a file do");
  expect(first.measured_peak_bytes <= first.planned_peak_bytes && first.planned_peak_bytes < minimum, "the arena is inside the budget");
  expect(std::isfinite(last_loss) && last_loss < 4.2, "the loss went down");
  expect(text.size() == 40, "forty characters were written");
  std::printf("consumer: ort-train %s, loss %.3f, weights %s\n", ort_train::version().c_str(), last_loss, first.weights_hash.c_str());
  return 0;
}
