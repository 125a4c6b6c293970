// `megalith dashboard` as a person meets it: the command, its server, and its page in a real browser.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/program_support.h"
#include "tests/support/expect.h"
#include "tests/support/free_port.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::seconds;
using Words = std::vector<std::string>;

std::string text_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A run that needs no training, with a hostile name.
constexpr const char* kHostileName = "<img src=x onerror=alert(1)>";
fs::path write_run(const TempFolder& folder, const std::string& name = "run") {
  const fs::path run = folder / name;
  fs::create_directory(run);
  std::ofstream metrics(run / "metrics.jsonl");
  for (int step = 1; step <= 50; ++step)
    metrics << json{{"step", step}, {"loss", 5.0 / step}, {"<b>bold</b>", step}}.dump() << "\n";
  std::ofstream(run / "args.yaml") << "run_name: <script>alert(3)</script>\n";
  return run;
}

TEST(DashboardCommand, WritesAReportInOneStep) {
  const TempFolder folder;
  const fs::path run = write_run(folder);
  const auto result = megalith({"dashboard", run.string(), "--static", (folder / "report.html").string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  expect_contains(text_in(folder / "report.html"), "\"lines\":50");
  EXPECT_FALSE(fs::exists(folder / "report.html.tmp"));
}

TEST(DashboardCommand, SaysWhatIsWrong) {
  const TempFolder folder;
  const std::string run = write_run(folder).string();
  const auto fails = [](const Words& words, const std::string& part) {
    const auto result = megalith(words);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    expect_contains(result.err, part);
  };
  fails({"dashboard"}, "output_dir");
  fails({"dashboard", (folder / "nothing").string()}, "nothing is not a folder");
  fails({"dashboard", run, "--port", "70000"}, "port is \"70000\"");
  fails({"dashboard", run, "--port"}, "--port needs a value");
  fails({"dashboard", run, "--prot=1"}, "no option --prot");
  fails({"dashboard", run, "--token", "short"}, "--token must have 16");
  fails({"dashboard", run, "--webhook", "ftp://example.org/"}, "http://HOST");
  fails({"dashboard", run, "--static", (folder / "no" / "where.html").string()}, "where.html");
  const auto help = megalith({"dashboard", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  expect_contains(help.out, "--static");
}

// `megalith dashboard` while it runs.
class Server {
 public:
  explicit Server(const Words& runs) : port_(free_port()), process_(words(runs, port_)) {
    EXPECT_TRUE(process_.wait_for_text("Ctrl-C", seconds(30)));
  }
  int port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/"; }
  ProcessResult stop() {
    process_.signal(SIGINT);
    return process_.finish(seconds(20));
  }

 private:
  static Words words(const Words& runs, int port) {
    Words all{MEGALITH_PROGRAM, "dashboard", "--port", std::to_string(port)};
    all.insert(all.end(), runs.begin(), runs.end());
    return all;
  }
  int port_;
  Subprocess process_;
};

// Returns the answer of a server on this port to raw bytes.
std::string ask(int port, const std::string& request) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      ::send(socket, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
    char bytes[4096];
    for (ssize_t got = 0; (got = ::recv(socket, bytes, sizeof bytes, 0)) > 0;)
      answer.append(bytes, static_cast<size_t>(got));
  }
  ::close(socket);
  return answer;
}

std::string get(int port, const std::string& path, const std::string& host = "localhost") {
  return ask(port, "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
}

class DashboardServer : public ::testing::Test {
 protected:
  TempFolder folder_;
};

TEST_F(DashboardServer, AnswersReadsAloneAndEndsInOrder) {
  const fs::path run = write_run(folder_);
  Server server({run.string()});
  const std::string page = get(server.port(), "/");
  expect_contains(page, "HTTP/1.1 200");
  for (const char* header : {"Content-Security-Policy: default-src 'none'", "X-Content-Type-Options: nosniff",
                             "Cache-Control: no-store", "frame-ancestors 'none'"})
    expect_contains(page, header);
  expect_contains(get(server.port(), "/api/runs"), "\"name\":\"run\"");
  expect_contains(get(server.port(), "/api/runs/0"), "\"lines\":50");
  std::ofstream(run / "metrics.jsonl", std::ios::app) << "{\"step\":51,\"loss\":1}\n";
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  expect_contains(get(server.port(), "/api/runs/0"), "\"lines\":51");
  for (const char* method : {"POST", "PUT", "DELETE"})
    EXPECT_EQ(ask(server.port(), std::string(method) + " /api/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
                                                       "Connection: close\r\n\r\n")
                  .find("HTTP/1.1 200"),
              std::string::npos)
        << method;
  const auto result = server.stop();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out, server.url());
  EXPECT_EQ(result.left_behind, 0);
}

TEST_F(DashboardServer, NothingElseCanBeReached) {
  const fs::path run = write_run(folder_);
  std::ofstream(folder_ / "secret.txt") << "password";
  std::ofstream(run / "secret.txt") << "password";
  Server server({run.string()});
  for (const char* path :
       {"/secret.txt", "/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/api/runs/0/../../../secret.txt",
        "/api/runs/0/%2e%2e/secret.txt", "//etc/passwd", "/api/runs/%2e%2e%2fsecret.txt", "/api/runs/0/secret.txt",
        "/api/runs/0%00", "/?/../secret.txt/x", "/api/runs/9"}) {
    const std::string answer = get(server.port(), path);
    EXPECT_EQ(answer.find("password"), std::string::npos) << path;
    EXPECT_EQ(answer.find("root:"), std::string::npos) << path;
    if (!std::string(path).starts_with("/?")) {
      EXPECT_EQ(answer.find("HTTP/1.1 200"), std::string::npos) << path;
    }
  }
  expect_contains(get(server.port(), "/api/runs", "evil.example"), "HTTP/1.1 403");
  expect_contains(ask(server.port(), "nonsense\r\n\r\n"), "400");
  expect_contains(get(server.port(), "/api/runs"), "HTTP/1.1 200");
}

TEST_F(DashboardServer, OtherMachinesNeedTheToken) {
  const std::string token = "0123456789abcdef";
  Server server({write_run(folder_).string(), "--host", "0.0.0.0", "--token", token});
  for (const char* path : {"/", "/api/runs", "/api/runs/0", "/metrics", "/?token=0123456789abcdeF"}) {
    const std::string answer = get(server.port(), path);
    expect_contains(answer, "HTTP/1.1 401");
    EXPECT_EQ(answer.find("\"lines\""), std::string::npos) << path;
    EXPECT_EQ(answer.find(token), std::string::npos) << path;
  }
  const std::string first = get(server.port(), "/?token=" + token);
  expect_contains(first, "HTTP/1.1 303");
  const std::string cookie = "megalith_" + std::to_string(server.port()) + "=" + token;
  expect_contains(first, "Set-Cookie: " + cookie + "; Path=/; HttpOnly; SameSite=Lax");
  expect_contains(get(server.port(), "/api/runs", "node7\r\nCookie: " + cookie), "HTTP/1.1 200");
  expect_contains(get(server.port(), "/metrics", "node7\r\nAuthorization: Bearer " + token),
                  "megalith_loss{run=\"run\"}");
  const auto result = server.stop();
  EXPECT_EQ(result.out.find("0.0.0.0"), std::string::npos) << result.out;
  expect_contains(result.out, ":" + std::to_string(server.port()) + "/?token=" + token);
}

TEST_F(DashboardServer, NotesComeFromItsOwnPageAlone) {
  const fs::path run = write_run(folder_);
  Server server({run.string()});
  const std::string page = get(server.port(), "/"), mark = "data-write-token=\"";
  const std::string token = page.substr(page.find(mark) + mark.size(), 32);
  const auto post = [&](const std::string& headers) {
    const std::string body = R"({"notes":"hello","tags":["x"]})";
    return ask(server.port(), "POST /api/runs/0/notes HTTP/1.1\r\nHost: localhost:1\r\n" + headers +
                                  "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  };
  const std::string write = "X-Megalith-Write: " + token + "\r\n";
  for (const std::string& headers : {std::string(), write, write + "Origin: http://evil.example\r\n",
                                     write + "Origin: null\r\n", std::string("Origin: http://localhost:1\r\n")}) {
    expect_contains(post(headers), "HTTP/1.1 403");
    EXPECT_FALSE(fs::exists(run / "notes.json")) << headers;
  }
  expect_contains(post(write + "Origin: http://localhost:1\r\n"), "HTTP/1.1 204");
  expect_contains(text_in(run / "notes.json"), "hello");
  Server reading({run.string(), "--read-only"});
  expect_contains(get(reading.port(), "/"), "data-write-token=\"\"");
}

TEST_F(DashboardServer, APortThatIsTakenIsNamed) {
  const std::string run = write_run(folder_).string();
  Server server({run});
  const auto second = megalith({"dashboard", run, "--port", std::to_string(server.port())});
  EXPECT_EQ(second.exit_code, 2);
  expect_contains(second.err, "cannot listen on 127.0.0.1 port " + std::to_string(server.port()));
}

std::string chromium() {
  if (const char* named = std::getenv("MEGALITH_CHROMIUM")) return named;
  for (const char* path : {"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"})
    if (fs::exists(path)) return path;
  return "";
}

// Real runs, made once: tp 2 x pp 2 with a timeline, evaluations and checkpoints; one with experts; a hostile one.
class DashboardBrowser : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (chromium().empty()) return;
    folder_ = new TempFolder;
    std::ofstream data(*folder_ / "data.jsonl");
    for (int i = 0; i < 40; ++i) {
      json ids = json::array();
      for (int t = 0; t < 6 + i % 5; ++t) ids.push_back((i * 7 + t * 13) % 60 + 2);
      data << json{{"input_ids", ids}, {"labels", ids}}.dump() << "\n";
    }
    data.close();
    train(
        "dense", "llama",
        {"--nproc=4", "--tp=2", "--pp=2", "--trace=2-4", "--save_strategy=steps", "--save_steps=3",
         "--eval_strategy=steps", "--eval_steps=3", "--val_size=5", "--log_straggler", "--log_histograms_interval=2"});
    train("experts", "qwen3_moe", {"--nproc=2", "--ep=2"});
    write_run(*folder_, kHostileName);
  }
  static void TearDownTestSuite() { delete folder_; }
  void SetUp() override {
    if (chromium().empty()) GTEST_SKIP() << "there is no chromium here";
  }

  static std::string path(const std::string& name) { return (*folder_ / name).string(); }
  static void train(const std::string& name, const std::string& model, const Words& more) {
    Words words{MEGALITH_PROGRAM,
                "train",
                "--finetuning_type=full",
                "--use_cpu",
                "--model_name_or_path=" + (golden_dir() / "hf" / model).string(),
                "--dataset=" + path("data.jsonl"),
                "--output_dir=" + path(name),
                "--per_device_train_batch_size=1",
                "--gradient_accumulation_steps=4",
                "--max_steps=6",
                "--learning_rate=1e-3",
                "--logging_steps=1"};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = run_process(words, {{"XDG_CACHE_HOME", path("cache")}}, seconds(100));
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  // The page as the browser has it after its scripts have run; nothing may be said on its console.
  static std::string dom_of(const std::string& url, const Words& more = {}) {
    Words words{chromium(),
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--no-first-run",
                "--user-data-dir=" + path("profile"),
                "--enable-logging=stderr",
                "--virtual-time-budget=6000",
                "--window-size=1400,1000"};
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {"--dump-dom", url});
    const auto result = run_process(words, {}, seconds(60));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err.find("CONSOLE"), std::string::npos) << result.err;
    expect_contains(result.out, "data-ready=\"yes\"");
    return result.out;
  }
  static size_t count(const std::string& text, const std::string& part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }
  static void expect_dense_run(const std::string& dom) {
    for (const char* chart :
         {"Loss", "Gradient norm", "Learning rate", "Tokens per second", "Memory", "Evaluation loss"}) {
      const size_t at = dom.find("data-chart=\"" + std::string(chart) + "\"");
      ASSERT_NE(at, std::string::npos) << chart;
      const std::string figure = dom.substr(at, dom.find("</figure>", at) - at);
      expect_contains(figure, "class=\"line\" d=\"M");
    }
    EXPECT_EQ(count(dom, "class=\"rank\""), 4U);
    expect_contains(dom, "4 ranks = tp 2 × pp 2");
    expect_contains(dom, " bubble</b>");
    EXPECT_EQ(count(dom, "<span>busy "), 4U);
    expect_contains(dom, "step 2 of 3");
    expect_contains(dom, "checkpoint-6 (newest)");
    for (const char* kind : {"start", "evaluation", "save", "end"})
      expect_contains(dom, "data-kind=\"" + std::string(kind) + "\"");
    expect_contains(dom, "learning_rate");
    expect_contains(dom, "This model has no experts");
    expect_contains(dom, "No texts yet");
    expect_contains(dom, " parts of the model at 3 steps");
    expect_contains(dom, "Gradients of embedding");
    EXPECT_EQ(count(dom, "<polyline class=\"ridge-line"), 3U);
  }

  static TempFolder* folder_;
};
TempFolder* DashboardBrowser::folder_ = nullptr;

TEST_F(DashboardBrowser, ServedPageShowsARealRun) {
  Server server({path("dense")});
  expect_dense_run(dom_of(server.url()));
  EXPECT_EQ(server.stop().exit_code, 0);
}

TEST_F(DashboardBrowser, ReportShowsTheSameWithoutAServer) {
  ASSERT_EQ(megalith({"dashboard", path("dense"), "--static", path("report.html")}).exit_code, 0);
  expect_dense_run(dom_of("file://" + path("report.html")));
  const std::string dark = dom_of("file://" + path("report.html"), {"--force-dark-mode", "--window-size=390,844"});
  expect_contains(dark, "data-theme=\"dark\"");
}

TEST_F(DashboardBrowser, ExpertsAreShownAndRunsCompared) {
  ASSERT_EQ(megalith({"dashboard", path("experts"), path("dense"), "--static", path("two.html")}).exit_code, 0);
  const std::string dom = dom_of("file://" + path("two.html"));
  expect_contains(dom, "times the mean");
  expect_contains(dom, "Busiest expert");
  expect_contains(dom, "aria-label=\"Compare dense\"");
  const size_t loss = dom.find("data-chart=\"Loss\"");
  EXPECT_EQ(count(dom.substr(loss, dom.find("</figure>", loss) - loss), "<g data-series="), 3U)
      << "two runs, one of them with evaluations";
  expect_contains(dom, "No timeline yet");
}

// Three steps of texts and histograms.
void write_records(const fs::path& run) {
  std::ofstream samples(run / "samples.jsonl"), histograms(run / "histograms.jsonl");
  for (int step = 10; step <= 30; step += 10) {
    const json text{{"prompt", "Why?"}, {"text", " <i>Because</i> " + std::to_string(step)}, {"ended", step == 30}};
    const json seen{{"spans", json::parse(R"([["Q: ",false],["A",true]])")},
                    {"tokens", 4},
                    {"loss_tokens", 1},
                    {"padding", 2},
                    {"left_out", 0}};
    samples << json{{"step", step}, {"time", 1}, {"generated", {text}}, {"trained", {seen}}}.dump() << "\n";
    json parts = json::array();
    for (const char* part : {"embedding", "layers.0.attention", "layers.0.mlp", "layers.1.attention", "head"})
      parts.push_back({{"part", part},
                       {"zeros", 1},
                       {"non_finite", 0},
                       {"negative", {-4, 1, 2}},
                       {"positive", {-8, 1, 4, 9, step}}});
    histograms << json{{"step", step}, {"time", 1}, {"weights", parts}, {"gradients", parts}}.dump() << "\n";
  }
}

// The page's own functions, checked by dashboard_page_test.js in the report of two small runs.
TEST_F(DashboardBrowser, PageLogic) {
  const auto write = [&](const std::string& name, double rate, double offset, const std::string& notes) {
    const fs::path run = *folder_ / "logic" / name;
    fs::create_directories(run);
    std::ofstream metrics(run / "metrics.jsonl");
    for (int step = 1; step <= 50; ++step)
      metrics << json{{"step", step},
                      {"loss", 5.0 / step + offset},
                      {"time", 1700000000 + 2 * step},
                      {"samples", 8 * step},
                      {"tokens", 1000 * step}}
                     .dump()
              << "\n";
    if (name == "base") metrics << json{{"step", 30}, {"eval_loss", 2.5}}.dump() << "\n";
    std::ofstream events(run / "events.jsonl");
    events << json{{"time", 1700000000}, {"step", 0}, {"event", "start"}, {"max_steps", 50}}.dump() << "\n";
    if (name == "other")
      events << json{{"time", 1700000090}, {"step", 45}, {"event", "skip"}, {"why", "loss"}}.dump() << "\n";
    events << json{{"time", 1700000100}, {"step", 50}, {"event", "end"}}.dump() << "\n";
    std::ofstream(run / "args.yaml") << "learning_rate: " << rate << "\nseed: 1\n";
    std::ofstream(run / "notes.json") << notes;
  };
  write("base", 0.001, 0, R"({"notes":"","tags":["good"]})");
  write("other", 0.002, 0.1, R"({"notes":"warmer","tags":[]})");
  write_records(*folder_ / "logic" / "base");
  ASSERT_EQ(megalith({"dashboard", path("logic"), "--static", path("logic.html")}).exit_code, 0);
  std::string page = text_in(path("logic.html"));
  const size_t nonce = page.find("nonce-") + 6;
  const std::string script =
      "<script nonce=\"" + page.substr(nonce, 32) + "\">" + text_in(MEGALITH_PAGE_TEST) + "</script>";
  page.insert(page.rfind("</body>"), script);
  std::ofstream(path("logic.html")) << page;
  expect_contains(dom_of("file://" + path("logic.html")), "data-page-test=\"passed\"");
}

// A bucket of this run holds 49 steps; a zoom shows each of them, the one bad step among them too.
TEST_F(DashboardBrowser, AZoomShowsEveryStep) {
  const fs::path run = *folder_ / "long";
  fs::create_directory(run);
  std::ofstream metrics(run / "metrics.jsonl");
  for (int step = 1; step <= 100'000; ++step)
    metrics << json{{"step", step}, {"loss", step == 50'004 ? 9.0 : 1.0 + step % 3}}.dump() << "\n";
  metrics.close();
  Server server({run.string()});
  const auto dots = [&](const std::string& address) {
    const std::string dom = dom_of(address);
    const size_t loss = dom.find("data-chart=\"Loss\"");
    return count(dom.substr(loss, dom.find("</figure>", loss) - loss), "<circle");
  };
  EXPECT_EQ(dots(server.url()), 0U);
  const size_t seen = dots(server.url() + "#zoom=50000-50010");
  EXPECT_GE(seen, 11U);
  EXPECT_LE(seen, 13U) << "with one point more at each side";
}

TEST_F(DashboardBrowser, HostileNamesAreTexts) {
  ASSERT_EQ(megalith({"dashboard", path(kHostileName), "--static", path("hostile.html")}).exit_code, 0);
  const std::string dom = dom_of("file://" + path("hostile.html"));
  expect_contains(dom, "&lt;img src=x onerror=alert(1)&gt;");
  EXPECT_EQ(dom.find("<img"), std::string::npos);
  EXPECT_EQ(dom.find("<b>bold"), std::string::npos);
  EXPECT_EQ(count(dom, "<script"), 2U);
  expect_contains(dom, "No evaluation yet");
}

}  // namespace
}  // namespace megalith::testing
