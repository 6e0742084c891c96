--[[ endings: returns whether jobs that are waited for have ended, and how, all at one moment.

The answer has a text for each id: empty for a job that is alive; for a dead job, its state line and, after a line
break, its error; for a job whose outcome is kept, its line in `results` and, after a line break, its result; nothing
for a job that Redis does not have. At most BYTES_MAX bytes of results are read, and one result more: LATER takes the
place of a result that the next look returns. After the texts come the id of the outbox's last entry, if a mirror reads
the outbox and jobs are missing, and the ms for which scripts still publish ends of jobs.

Keys: meta state jobs outbox results returned
Args: id…
Given: ALIVE LATER BYTES_MAX IN_LOG LOST
Returns: {TEXT…} LAST_ENTRY TOLD_MS
]]

local found, absent, size = {}, false, 0
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- First: an id has a job or a line in `results`, never both, and most jobs that clients look at have ended.
local outcomes = #ARGV > 0 and redis.call('HMGET', results, unpack(ARGV)) or {}
local left, at_of = {}, {}           -- ids without an outcome, and their places
for i = 1, #ARGV do
  if not outcomes[i] then
    left[#left + 1], at_of[#at_of + 1] = ARGV[i], i
  end
end
local lines = #left > 0 and redis.call('HMGET', state, unpack(left)) or {}
for k = 1, #left do
  local i, line = at_of[k], lines[k]
  if line and line:sub(1, 5) == 'dead ' then
    local value = redis.call('HGET', jobs, left[k])
    local ends = value and value:sub(1, 6) == 'error=' and value:find('\n', 1, true)
    found[i] = line .. '\n' .. (ends and value:sub(1, ends) or '')
  elseif line or redis.call('HEXISTS', jobs, left[k]) == 1 then
    found[i] = ALIVE
  else
    found[i], absent = false, true
  end
end
local asked, kept_of, place_of = {}, {}, {}   -- ids whose results are read, their lines, and their places
local until_text, ends, bytes_text   -- of the last line: often the next one has the same
local bytes = 0
for i = 1, #ARGV do
  local kept = outcomes[i]
  if kept then
    -- A plain search for the word costs a tenth of what a pattern costs, which is tried at each place of the line.
    local until_at = kept:find(' until=', 1, true)
    local text = until_at and kept:match('^%d+', until_at + 7)
    if text ~= until_text then
      until_text, ends = text, text and tonumber(text)
    end
    local has_value = kept:find(' bytes=', until_at or 1, true)
    if not text and not kept:find(' once=', 1, true) then
      found[i], absent = false, true
    elseif not has_value then
      found[i], absent = kept, absent or kept:find(IN_LOG, 1, true)
    elseif text and ends <= now then
      found[i], absent = kept:gsub(' bytes=%d+', ' value=expired'), absent or kept:find(IN_LOG, 1, true)
    elseif size > BYTES_MAX then
      found[i] = LATER
    else
      text = kept:match('^%d+', has_value + 7)
      if text ~= bytes_text then
        bytes_text, bytes = text, tonumber(text) or 0
      end
      size = size + bytes
      local at = #asked + 1
      asked[at], kept_of[at], place_of[at] = ARGV[i], kept, i
    end
  end
end
local values = #asked > 0 and redis.call('HMGET', returned, unpack(asked)) or {}
for k = 1, #asked do
  local i, kept, value = place_of[k], kept_of[k], values[k]
  if value then
    found[i] = kept .. '\n' .. value
  else
    found[i], absent = kept:gsub(' bytes=%d+', ' value=' .. LOST), absent or kept:find(IN_LOG, 1, true)
  end
end
local facts, last = redis.call('HMGET', meta, 'audit', 'awaited'), nil
if absent and facts[1] == 'on' then
  last = redis.call('XREVRANGE', outbox, '+', '-', 'COUNT', 1)[1]
end
local told_until = tonumber(facts[2] or nil)
return {found, last and last[1] or '', told_until and math.floor(told_until - now) or 0}
